/** What people have set; `schema/plugin.json` describes it. */
export interface IMeshSettings {
  showStatusBar: boolean;
  panelArea: 'left' | 'right';
  /** Lines per page of logs. */
  logLines: number;
  openMeshesByDefault: boolean;
}

/** As in the schema: for a page that has no settings. */
export const DEFAULT_SETTINGS: IMeshSettings = {
  showStatusBar: true,
  panelArea: 'left',
  logLines: 500,
  openMeshesByDefault: true
};
