/** The settings of the user; `schema/plugin.json` describes them. */
export interface IMeshSettings {
  showStatusBar: boolean;
  panelArea: 'left' | 'right';
  /** Lines per page of logs. */
  logLines: number;
  openMeshesByDefault: boolean;
}

/** The defaults of the schema, for a page without settings. */
export const DEFAULT_SETTINGS: IMeshSettings = {
  showStatusBar: true,
  panelArea: 'left',
  logLines: 500,
  openMeshesByDefault: true
};
