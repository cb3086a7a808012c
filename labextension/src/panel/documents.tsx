import { MainAreaWidget } from '@jupyterlab/apputils';
import { ReactWidget } from '@jupyterlab/ui-components';
import * as React from 'react';
import { meshIcon } from '../icons';
import { Reading } from './reading';
import { TranslateContext } from '../translate';
import type { Translate } from '../words';

/** A tab that shows one answer of the server, and can ask again. */
export function createDocument<T>(
  label: string,
  read: () => Promise<T>,
  show: (answer: T) => JSX.Element,
  translate: Translate
): MainAreaWidget {
  const content = ReactWidget.create(
    <TranslateContext.Provider value={translate}>
      <Reading read={read} show={show} />
    </TranslateContext.Provider>
  );
  content.addClass('mnb-document');
  const tab = new MainAreaWidget({ content });
  tab.toolbar.hide();
  tab.title.label = label;
  tab.title.icon = meshIcon;
  tab.title.closable = true;
  return tab;
}
