/**
 * The panel as a page of its own, without JupyterLab: what `monarch-nb dashboard` and the server extension
 * serve.
 */
import * as React from 'react';
import { createRoot } from 'react-dom/client';
import { Api } from '../transport/api';
import { DashboardView } from './dashboardview';
import { MeshesModel } from './model';
import { pageConnection } from '../transport/pageconnection';
import { Stream } from '../transport/stream';
import { TranslateContext } from '../translate';
import { VERSION } from '../transport/version';
import { untranslated } from '../words';

const place = document.getElementById('monarch-nb-dashboard');
if (place) {
  const connection = pageConnection(place.dataset.baseUrl ?? '/');
  const service = { api: new Api(connection), stream: new Stream(() => connection.openSocket()) };
  const model = new MeshesModel(service.stream);
  const mesh = new URLSearchParams(location.search).get('mesh');
  if (mesh) {
    model.use(mesh);
  }
  createRoot(place).render(
    <TranslateContext.Provider value={untranslated}>
      <DashboardView service={service} model={model} version={VERSION} />
    </TranslateContext.Provider>
  );
}
