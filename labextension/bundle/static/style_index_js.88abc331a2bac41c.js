"use strict";(self.rspackChunkmonarch_nb=self.rspackChunkmonarch_nb||[]).push([["style_index_js"],{"./node_modules/css-loader/dist/cjs.js!./style/base.css"(r,n,e){var o=e("./node_modules/css-loader/dist/runtime/noSourceMaps.js"),a=e.n(o),t=e("./node_modules/css-loader/dist/runtime/api.js"),i=(e.n(t))()(a());i.push([r.id,`/* The panel, the logs, the status bar and the tabs. The card has a file of its own, as it also lives outside JupyterLab. */

.mnb-panel,
.mnb-logs,
.mnb-debug,
.mnb-document {
  color: var(--jp-ui-font-color1);
  background: var(--jp-layout-color1);
  font-family: var(--jp-ui-font-family);
  font-size: var(--jp-ui-font-size1);
  font-variant-numeric: tabular-nums;
}

.mnb-panel {
  min-width: 220px;
  overflow-x: hidden;
  overflow-y: auto;
  container-type: inline-size;
}

.mnb-ellipsis {
  overflow: hidden;
  text-overflow: ellipsis;
  white-space: nowrap;
}

.mnb-number {
  text-align: right;
  white-space: nowrap;
}

.mnb-hint,
.mnb-problem {
  margin: 4px 8px;
  line-height: 1.35;
  overflow-wrap: anywhere;
}

.mnb-hint {
  color: var(--jp-ui-font-color2);
}

/* A bar at the side, so that a problem isn't told by colour alone. */
.mnb-problem {
  padding-left: 6px;
  border-left: 3px solid var(--jp-error-color1);
}

.mnb-message {
  padding: 12px 8px;
  line-height: 1.4;
}

.mnb-message p {
  margin: 0 0 8px;
}

.mnb-message pre {
  margin: 0;
  padding: 6px 8px;
  background: var(--jp-layout-color2);
  font-family: var(--jp-code-font-family);
  font-size: var(--jp-code-font-size);
  white-space: pre-wrap;
  user-select: all;
}

/* --- controls */

.mnb-button {
  min-height: 22px;
  padding: 0 7px;
  color: var(--jp-ui-font-color1);
  background: var(--jp-layout-color1);
  border: 1px solid var(--jp-border-color1);
  border-radius: var(--jp-border-radius);
  font: inherit;
  font-size: var(--jp-ui-font-size0);
  cursor: pointer;
}

.mnb-button:hover:not(:disabled) {
  background: var(--jp-layout-color2);
}

.mnb-button:disabled {
  color: var(--jp-ui-font-color3);
  border-color: var(--jp-border-color2);
  cursor: default;
}

.mnb-button[aria-busy='true'] {
  cursor: progress;
}

.mnb-button[aria-pressed='true'] {
  background: var(--jp-layout-color3);
}

.mnb-mod-accept:not(:disabled) {
  color: var(--jp-ui-inverse-font-color1);
  background: var(--jp-brand-color1);
  border-color: var(--jp-brand-color1);
}

.mnb-mod-accept:hover:not(:disabled) {
  background: var(--jp-brand-color0);
}

.mnb-panel :focus-visible,
.mnb-logs :focus-visible,
.mnb-debug :focus-visible,
.mnb-document :focus-visible,
.mnb-status :focus-visible {
  outline: 2px solid var(--jp-brand-color1);
  outline-offset: -1px;
}

.mnb-actions {
  display: flex;
  flex-wrap: wrap;
  gap: 4px;
  padding: 4px 8px;
}

.mnb-input {
  box-sizing: border-box;
  width: 100%;
  min-width: 0;
  height: 24px;
  padding: 0 6px;
  color: var(--jp-ui-font-color1);
  background: var(--jp-input-background, var(--jp-layout-color1));
  border: 1px solid var(--jp-border-color1);
  border-radius: var(--jp-border-radius);
  font: inherit;
}

.mnb-input::placeholder {
  color: var(--jp-ui-font-color3);
}

.mnb-input[aria-invalid='true'] {
  border: 2px solid var(--jp-error-color1);
}

.mnb-form fieldset {
  min-width: 0;
  margin: 0;
  padding: 4px 8px 8px;
  border: 0;
}

.mnb-form .mnb-hint,
.mnb-form .mnb-problem {
  margin: 2px 0 4px;
  font-size: var(--jp-ui-font-size0);
}

.mnb-form .mnb-actions {
  padding: 4px 0 0;
}

.mnb-form-row {
  flex: 1 1 0;
  min-width: 0;
  margin-bottom: 6px;
}

.mnb-form-row label {
  display: block;
  margin-bottom: 2px;
  color: var(--jp-ui-font-color2);
  font-size: var(--jp-ui-font-size0);
}

.mnb-form-pair {
  display: flex;
  gap: 6px;
}

/* --- a mesh */

.mnb-start,
.mnb-mesh {
  padding: 4px 0 6px;
  border-bottom: 1px solid var(--jp-border-color2);
}

.mnb-requests {
  padding: 4px 0;
  border-bottom: 1px solid var(--jp-border-color2);
}

.mnb-requests-title {
  margin: 0;
  padding: 2px 8px;
  color: var(--jp-ui-font-color2);
  font-size: var(--jp-ui-font-size0);
  font-weight: 600;
}

.mnb-request {
  padding: 2px 0 4px;
}

.mnb-request-head {
  display: flex;
  gap: 8px;
  align-items: baseline;
  padding: 0 8px;
}

.mnb-request-job {
  flex: 1 1 auto;
  min-width: 0;
  color: var(--jp-ui-font-color2);
  font-size: var(--jp-ui-font-size0);
}

.mnb-request-state {
  padding: 0 8px;
  line-height: 1.35;
  overflow-wrap: anywhere;
}

.mnb-mesh-head {
  display: flex;
  align-items: center;
  gap: 4px;
  padding-right: 8px;
}

.mnb-mesh-toggle {
  display: flex;
  flex: 1 1 auto;
  align-items: center;
  gap: 6px;
  min-width: 0;
  padding: 3px 8px;
  color: inherit;
  background: none;
  border: 0;
  font: inherit;
  text-align: left;
  cursor: pointer;
}

.mnb-mesh-toggle:hover {
  background: var(--jp-layout-color2);
}

.mnb-caret {
  flex: none;
  width: 0;
  height: 0;
  border: 4px solid transparent;
  border-right-width: 0;
  border-left: 6px solid var(--jp-ui-font-color2);
}

[aria-expanded='true'] > .mnb-caret {
  transform: rotate(90deg);
}

.mnb-mesh-name {
  font-weight: 600;
}

.mnb-mesh-tally {
  display: flex;
  flex-wrap: wrap;
  gap: 0 10px;
  padding: 0 8px 2px 40px;
  color: var(--jp-ui-font-color2);
  font-size: var(--jp-ui-font-size0);
}

.mnb-mesh-shape {
  color: var(--jp-ui-font-color1);
}

/* Health has a shape, too: a disc, a ring, a square on its corner. */
.mnb-dot {
  box-sizing: border-box;
  flex: none;
  width: 10px;
  height: 10px;
  border-radius: 50%;
}

.mnb-dot-ok {
  background: var(--jp-success-color1);
}

.mnb-dot-busy {
  border: 3px solid var(--jp-brand-color1);
}

.mnb-dot-trouble {
  background: var(--jp-error-color1);
  border-radius: 0;
  transform: rotate(45deg) scale(0.85);
}

.mnb-badge {
  flex: none;
  padding: 1px 6px;
  color: var(--jp-ui-font-color1);
  background: var(--jp-warn-color3, var(--jp-layout-color3));
  border: 1px solid var(--jp-warn-color1);
  border-radius: 8px;
  font: inherit;
  font-size: var(--jp-ui-font-size0);
  cursor: pointer;
}

[data-jp-theme-light='false'] .mnb-badge {
  background: var(--jp-layout-color3);
}

.mnb-grid-place {
  max-height: 50vh;
  padding: 4px 8px;
  overflow: auto;
}

.mnb-failed {
  margin: 0 8px;
  padding: 0;
  list-style: none;
  line-height: 1.35;
}

.mnb-failed li {
  margin: 3px 0;
  padding-left: 6px;
  border-left: 3px solid var(--jp-error-color1);
  overflow-wrap: anywhere;
}

.mnb-rank {
  margin: 4px 8px;
  border: 1px solid var(--jp-border-color2);
  border-radius: var(--jp-border-radius);
}

.mnb-facts {
  display: grid;
  grid-template-columns: auto minmax(0, 1fr);
  gap: 1px 8px;
  margin: 0;
  padding: 4px 8px;
}

.mnb-facts dt {
  color: var(--jp-ui-font-color2);
}

.mnb-facts dd {
  margin: 0;
  overflow-wrap: anywhere;
}

/* --- hosts */

.mnb-host {
  padding: 4px 8px;
}

.mnb-host-lost,
.mnb-host-stopped {
  opacity: 0.65;
}

.mnb-host-name {
  display: flex;
  gap: 6px;
  font-weight: 600;
}

.mnb-host-state {
  color: var(--jp-ui-font-color2);
  font-weight: 400;
}

.mnb-host-differs {
  color: var(--jp-warn-color0);
  overflow-wrap: anywhere;
}

.mnb-host-bar {
  display: grid;
  grid-template-columns: 4.2em minmax(20px, 1fr) 4.6em 48px;
  align-items: center;
  gap: 6px;
  min-height: 18px;
}

.mnb-host-bar-label {
  color: var(--jp-ui-font-color2);
}

.mnb-gpu {
  display: grid;
  grid-template-columns: 1.4em minmax(16px, 1fr) 3em minmax(16px, 1fr) 4.6em 3.2em;
  align-items: center;
  gap: 4px;
  min-height: 16px;
  font-size: var(--jp-ui-font-size0);
}

.mnb-gpu-index {
  color: var(--jp-ui-font-color2);
}

.mnb-meter {
  height: 8px;
  overflow: hidden;
  background: var(--jp-layout-color3);
  border-radius: 2px;
}

.mnb-meter > span {
  display: block;
  height: 100%;
  background: var(--jp-brand-color1);
}

.mnb-meter-memory > span {
  background: var(--jp-info-color1, var(--jp-brand-color2));
}

.mnb-meter.mnb-mod-high > span {
  background: var(--jp-warn-color1);
}

.mnb-spark {
  width: 48px;
  height: 16px;
}

.mnb-spark path {
  fill: none;
  stroke: var(--jp-ui-font-color2);
  stroke-linecap: round;
  stroke-linejoin: round;
}

/* --- logs */

.mnb-log-pane,
.mnb-logs {
  height: 100%;
}

.mnb-logs {
  display: flex;
  flex-direction: column;
}

.mnb-log-bar {
  display: flex;
  flex: none;
  flex-wrap: wrap;
  align-items: center;
  gap: 6px;
  padding: 4px 8px;
  border-bottom: 1px solid var(--jp-border-color2);
}

.mnb-log-ranks {
  width: 9em;
}

.mnb-log-grep {
  flex: 1 1 10em;
  width: auto;
  font-family: var(--jp-code-font-family);
}

.mnb-log-follow {
  display: flex;
  align-items: center;
  gap: 3px;
}

.mnb-log-problem {
  flex: none;
}

.mnb-log-lines {
  flex: 1 1 0;
  min-height: 0;
  padding: 4px 0;
  overflow: auto;
  background: var(--jp-layout-color0);
  font-family: var(--jp-code-font-family);
  font-size: var(--jp-code-font-size);
  line-height: 1.4;
}

.mnb-log-segment {
  content-visibility: auto;
  contain-intrinsic-size: auto calc(var(--mnb-lines) * 1.4em);
}

.mnb-log-line {
  padding: 0 8px 0 5px;
  border-left: 3px solid transparent;
  overflow-wrap: anywhere;
  white-space: pre-wrap;
}

.mnb-log-line.mnb-mod-stderr {
  border-left: 3px double var(--jp-warn-color1);
}

.mnb-log-rank {
  color: var(--jp-ui-font-color2);
}

.mnb-log-note {
  margin: 0;
  padding: 4px 8px;
  color: var(--jp-ui-font-color2);
  font-family: var(--jp-ui-font-family);
  font-size: var(--jp-ui-font-size1);
  overflow-anchor: none;
}

.mnb-log-foot {
  flex: none;
  min-height: 1.4em;
  padding: 2px 8px;
  color: var(--jp-ui-font-color2);
  border-top: 1px solid var(--jp-border-color2);
  font-size: var(--jp-ui-font-size0);
}

.mnb-ansi-bold {
  font-weight: 700;
}

.mnb-ansi-black {
  color: var(--jp-ui-font-color3);
}

.mnb-ansi-red {
  color: var(--jp-error-color1);
}

.mnb-ansi-green {
  color: var(--jp-success-color1);
}

.mnb-ansi-yellow {
  color: var(--jp-warn-color1);
}

.mnb-ansi-blue {
  color: var(--jp-brand-color1);
}

.mnb-ansi-magenta {
  color: var(--jp-mirror-editor-keyword-color);
}

.mnb-ansi-cyan {
  color: var(--jp-info-color1);
}

.mnb-ansi-white {
  color: var(--jp-ui-font-color1);
}

/* --- debugger */

.mnb-debug-pane {
  container-type: inline-size;
}

.mnb-debug-pane,
.mnb-debug {
  height: 100%;
}

.mnb-debug {
  display: grid;
  grid-template-columns: minmax(160px, 1fr) minmax(240px, 3fr) minmax(190px, 1.2fr);
}

.mnb-debug-side {
  min-width: 0;
  overflow: auto;
}

.mnb-debug-head {
  display: flex;
  align-items: center;
  justify-content: space-between;
  min-height: 30px;
  padding: 0 8px;
}

.mnb-debug-head h3 {
  margin: 0;
  font-size: var(--jp-ui-font-size1);
}

.mnb-debug-places {
  margin: 0;
  padding: 0;
  list-style: none;
}

.mnb-debug-place {
  display: flex;
  align-items: flex-start;
  gap: 4px;
  padding: 2px 4px;
  border-left: 3px solid transparent;
}

.mnb-debug-place.mnb-mod-shown {
  background: var(--jp-layout-color2);
  border-left-color: var(--jp-brand-color1);
}

.mnb-debug-where {
  display: flex;
  flex: 1 1 auto;
  flex-direction: column;
  min-width: 0;
  padding: 2px;
  color: inherit;
  background: none;
  border: 0;
  font: inherit;
  text-align: left;
  overflow-wrap: anywhere;
  cursor: pointer;
}

.mnb-debug-where code {
  font-family: var(--jp-code-font-family);
  font-size: var(--jp-code-font-size);
}

.mnb-debug-where .mnb-hint {
  margin: 0;
  font-size: var(--jp-ui-font-size0);
}

.mnb-debug-main {
  display: flex;
  flex-direction: column;
  min-width: 0;
  min-height: 0;
  border-inline: 1px solid var(--jp-border-color2);
}

.mnb-debug-source {
  flex: none;
  margin: 0;
  border-bottom: 1px solid var(--jp-border-color2);
}

.mnb-debug-source pre {
  max-height: 40vh;
  margin: 0;
  padding: 4px 0;
  overflow: auto;
  background: var(--jp-layout-color0);
  font-family: var(--jp-code-font-family);
  font-size: var(--jp-code-font-size);
  line-height: 1.4;
}

.mnb-debug-code {
  width: max-content;
  min-width: 100%;
  padding: 0 8px;
  box-sizing: border-box;
  white-space: pre;
}

.mnb-debug-code.mnb-mod-here {
  background: var(--jp-layout-color2);
  font-weight: 700;
}

.mnb-debug-transcript {
  flex: 1 1 0;
  min-height: 0;
  padding: 4px 0;
  overflow: auto;
  font-family: var(--jp-code-font-family);
  font-size: var(--jp-code-font-size);
  line-height: 1.4;
}

.mnb-debug-entry {
  padding: 0 8px 0 5px;
  border-left: 3px solid transparent;
  overflow-wrap: anywhere;
  white-space: pre-wrap;
}

.mnb-debug-entry.mnb-mod-line {
  color: var(--jp-ui-font-color2);
}

.mnb-debug-entry.mnb-mod-note {
  border-left-color: var(--jp-warn-color1);
  font-family: var(--jp-ui-font-family);
}

.mnb-debug-prompt {
  flex: none;
  padding: 4px 8px;
  border-top: 1px solid var(--jp-border-color2);
}

.mnb-debug-line {
  font-family: var(--jp-code-font-family);
  font-size: var(--jp-code-font-size);
}

.mnb-debug-variables {
  width: 100%;
  border-collapse: collapse;
}

.mnb-debug-variables th,
.mnb-debug-variables td {
  padding: 2px 8px;
  border-bottom: 1px solid var(--jp-border-color2);
  text-align: left;
  vertical-align: top;
  white-space: nowrap;
}

.mnb-debug-variables td:last-child {
  white-space: pre-wrap;
  overflow-wrap: anywhere;
}

.mnb-debug-variables td {
  font-family: var(--jp-code-font-family);
  font-size: var(--jp-code-font-size);
}

.mnb-debug-variables .mnb-mod-differs td {
  font-weight: 700;
}

@container (max-width: 640px) {
  .mnb-debug {
    grid-template-columns: minmax(0, 1fr);
    grid-template-rows: minmax(60px, auto) minmax(260px, 1fr) minmax(60px, auto);
  }

  .mnb-debug-main {
    border-block: 1px solid var(--jp-border-color2);
    border-inline: 0;
  }
}

/* --- status bar and tabs */

.mnb-status-button {
  height: 100%;
  padding: 0 6px;
  color: inherit;
  background: none;
  border: 0;
  font: inherit;
  font-variant-numeric: tabular-nums;
  cursor: pointer;
}

.mnb-status-button:hover {
  background: var(--jp-layout-color3);
}

.mnb-document {
  padding: 4px 0;
  overflow: auto;
}

.mnb-stacks {
  margin: 0;
  padding: 4px 8px;
  font-family: var(--jp-code-font-family);
  font-size: var(--jp-code-font-size);
  line-height: 1.4;
}

.mnb-journal {
  width: 100%;
  border-collapse: collapse;
}

.mnb-journal th,
.mnb-journal td {
  padding: 3px 8px;
  border-bottom: 1px solid var(--jp-border-color2);
  text-align: left;
  vertical-align: top;
}

.mnb-journal td.mnb-number {
  text-align: right;
}

.mnb-journal code,
.mnb-journal pre {
  margin: 0;
  font-family: var(--jp-code-font-family);
  font-size: var(--jp-code-font-size);
  white-space: pre-wrap;
}

@media (forced-colors: active) {
  .mnb-dot,
  .mnb-meter {
    forced-color-adjust: none;
  }
}

/* Eight ranks to a line, as the grid lays them out, in a sidebar of 250 pixels. */
@container (max-width: 260px) {
  .mnb-panel .mnb-grid-medium .mnb-cell {
    width: 25px;
    margin-right: 1px;
    padding: 0 2px;
    font-size: 10px;
  }
}
`,""]),e.d(n,{},{A:i})},"./node_modules/css-loader/dist/cjs.js!./style/card.css"(r,n,e){var o=e("./node_modules/css-loader/dist/runtime/noSourceMaps.js"),a=e.n(o),t=e("./node_modules/css-loader/dist/runtime/api.js"),i=(e.n(t))()(a());i.push([r.id,`/*
 * The rank grid and the card. Colours are the theme's; the literal ones are for pages without JupyterLab's variables,
 * where everything else is mixed from the page's own text colour, so that light and dark pages both work.
 */

.mnb-card,
.mnb-grid {
  --mnb-text: var(--jp-ui-font-color1, currentcolor);
  --mnb-dim: var(--jp-ui-font-color2, color-mix(in srgb, currentcolor 68%, transparent));
  --mnb-border: var(--jp-border-color2, color-mix(in srgb, currentcolor 20%, transparent));
  --mnb-strong: var(--jp-border-color0, color-mix(in srgb, currentcolor 45%, transparent));
  --mnb-faint: var(--jp-layout-color2, color-mix(in srgb, currentcolor 7%, transparent));
  --mnb-page: var(--jp-layout-color1, transparent);
  --mnb-ok: var(--jp-success-color1, #43a047);
  --mnb-busy: var(--jp-brand-color1, #2196f3);
  --mnb-debug: var(--jp-info-color1, #00acc1);
  --mnb-warn: var(--jp-warn-color1, #f57c00);
  --mnb-bad: var(--jp-error-color1, #e53935);

  color: var(--mnb-text);
  font-family: var(--jp-ui-font-family, system-ui, sans-serif);
  font-size: var(--jp-ui-font-size1, 13px);
  font-variant-numeric: tabular-nums;
  line-height: 1.4;
}

/* Grid ---------------------------------------------------------------------------------------------------------- */

.mnb-grid {
  display: flex;
  container-type: inline-size;
  flex-wrap: wrap;
  gap: 8px 14px;
  align-content: flex-start;
}

.mnb-legend {
  flex: 0 0 100%;
  margin-bottom: -4px;
  color: var(--mnb-dim);
  font-size: 11px;
  white-space: pre;
}

.mnb-groups {
  display: flex;
  flex-wrap: wrap;
  gap: 2px 14px;
  align-items: flex-start;
}

.mnb-block-label {
  font-size: 11px;
}

.mnb-line {
  display: flex;
  align-items: center;
}

.mnb-line-label {
  flex: none;
  width: 3ch;
  padding-right: 6px;
  color: var(--mnb-dim);
  font-size: 10px;
  line-height: 1;
  text-align: right;
}

.mnb-cell {
  --mnb-tone: var(--mnb-dim);

  position: relative;
  flex: none;
  box-sizing: border-box;
  border-radius: 2px;
  outline: none;
  cursor: pointer;
  user-select: none;
}

.mnb-cell.mnb-busy {
  --mnb-tone: var(--mnb-busy);
}

.mnb-cell.mnb-debugging {
  --mnb-tone: var(--mnb-debug);
}

.mnb-cell.mnb-unresponsive {
  --mnb-tone: var(--mnb-warn);
}

.mnb-cell.mnb-lost {
  --mnb-tone: var(--mnb-bad);
}

/* A gap of the page's colour between cell and ring, so that the ring is seen on any colour. */
.mnb-cell.mnb-selected {
  z-index: 1;
  box-shadow:
    0 0 0 1px var(--mnb-page),
    0 0 0 3px var(--mnb-text);
}

.mnb-cell:focus-visible {
  z-index: 2;
  box-shadow:
    0 0 0 1px var(--mnb-page),
    0 0 0 3px var(--mnb-busy);
}

.mnb-grid-small .mnb-line {
  height: 12px;
}

.mnb-grid-small .mnb-cell {
  width: 11px;
  height: 11px;
  margin-right: 1px;
  background-color: color-mix(in srgb, var(--mnb-dim) 22%, transparent);
}

.mnb-grid-small .mnb-cell:hover {
  outline: 1px solid var(--mnb-text);
}

/* Filled, with a ring. */
.mnb-grid-small .mnb-cell.mnb-busy {
  border: 2px solid var(--mnb-tone);
  background-color: color-mix(in srgb, var(--mnb-tone) 62%, var(--mnb-page));
}

/* A dot. */
.mnb-grid-small .mnb-cell.mnb-debugging {
  border: 2px solid var(--mnb-tone);
  background: radial-gradient(circle, var(--mnb-tone) 2px, transparent 2.5px);
}

.mnb-grid-small .mnb-cell.mnb-starting,
.mnb-grid-small .mnb-cell.mnb-stopping {
  border: 1px dashed var(--mnb-tone);
  background: none;
}

/* Empty, with a bar. */
.mnb-grid-small .mnb-cell.mnb-stopped {
  border: 1px solid var(--mnb-border);
  background: linear-gradient(var(--mnb-tone), var(--mnb-tone)) center / 5px 1px no-repeat;
}

/* Hatched. */
.mnb-grid-small .mnb-cell.mnb-unresponsive {
  background: repeating-linear-gradient(
    135deg,
    var(--mnb-tone) 0 2px,
    color-mix(in srgb, var(--mnb-tone) 30%, var(--mnb-page)) 2px 4px
  );
}

/* Crossed out. */
.mnb-grid-small .mnb-cell.mnb-lost {
  border: 1px solid var(--mnb-tone);
  background:
    linear-gradient(45deg, transparent 43%, var(--mnb-tone) 43% 57%, transparent 57%),
    linear-gradient(135deg, transparent 43%, var(--mnb-tone) 43% 57%, transparent 57%),
    color-mix(in srgb, var(--mnb-tone) 15%, var(--mnb-page));
}

.mnb-grid-medium .mnb-cell,
.mnb-grid-large .mnb-cell {
  border: 1px solid color-mix(in srgb, var(--mnb-tone) 40%, transparent);
  background-color: color-mix(in srgb, var(--mnb-tone) 7%, transparent);
}

.mnb-grid-medium .mnb-cell:not(.mnb-idle),
.mnb-grid-large .mnb-cell:not(.mnb-idle) {
  border-color: var(--mnb-tone);
  background-color: color-mix(in srgb, var(--mnb-tone) 16%, transparent);
}

.mnb-grid-medium .mnb-cell.mnb-starting,
.mnb-grid-medium .mnb-cell.mnb-stopping,
.mnb-grid-large .mnb-cell.mnb-starting,
.mnb-grid-large .mnb-cell.mnb-stopping {
  border-style: dashed;
  background: none;
}

.mnb-grid-medium .mnb-cell:hover,
.mnb-grid-large .mnb-cell:hover {
  border-color: var(--mnb-text);
}

.mnb-grid-medium .mnb-cell {
  display: flex;
  justify-content: space-between;
  align-items: center;
  width: 36px;
  height: 22px;
  margin: 0 2px 2px 0;
  padding: 0 4px;
  font-size: 11px;
  line-height: 1;
}

.mnb-cell-glyph {
  width: 1ch;
  color: var(--mnb-tone);
  font-weight: 600;
  text-align: center;
}

/* A full block looks larger than the others. */
.mnb-stopped > .mnb-cell-glyph {
  font-size: 8px;
}

.mnb-grid-large .mnb-cell {
  display: grid;
  grid-template: auto auto / auto 1fr;
  align-items: baseline;
  column-gap: 5px;
  width: 92px;
  margin: 0 4px 4px 0;
  padding: 3px 6px;
  line-height: 1.3;
}

.mnb-grid-large .mnb-cell-number {
  font-weight: 600;
}

.mnb-cell-state {
  overflow: hidden;
  color: color-mix(in srgb, var(--mnb-tone) 72%, var(--mnb-text));
  font-size: 11px;
  text-align: right;
  text-overflow: ellipsis;
}

.mnb-cell-doing {
  grid-column: 1 / -1;
  overflow: hidden;
  min-height: 1.3em;
  color: var(--mnb-dim);
  font-size: 11px;
  white-space: nowrap;
  text-overflow: ellipsis;
}

.mnb-grid.mnb-ended {
  filter: grayscale(1);
  opacity: 0.6;
}

/* Card ---------------------------------------------------------------------------------------------------------- */

.mnb-card {
  container-type: inline-size;
  position: relative;
  box-sizing: border-box;
  max-width: 1000px;
  padding: 8px 12px 10px;
  border: 1px solid var(--mnb-border);
  border-radius: 4px;
  background: var(--mnb-page);
}

.mnb-card [hidden] {
  display: none;
}

.mnb-card-head {
  display: flex;
  flex-wrap: wrap;
  gap: 4px 12px;
  align-items: center;
  min-height: 24px;
}

.mnb-card-name {
  overflow: hidden;
  font-weight: 600;
  white-space: nowrap;
  text-overflow: ellipsis;
}

.mnb-card-health {
  display: inline-flex;
  gap: 5px;
  align-items: center;
}

.mnb-card-health::before {
  width: 8px;
  height: 8px;
  border-radius: 50%;
  background: var(--mnb-dim);
  content: '';
}

.mnb-card-health.mnb-health-ok::before {
  background: var(--mnb-ok);
}

.mnb-card-health.mnb-health-busy::before {
  background: var(--mnb-busy);
}

.mnb-card-health.mnb-health-trouble::before {
  border-radius: 0;
  background: var(--mnb-bad);
}

.mnb-card-health.mnb-health-ended::before {
  box-sizing: border-box;
  border: 1px solid var(--mnb-dim);
  background: none;
}

.mnb-card-buttons {
  display: flex;
  gap: 6px;
}

.mnb-card-head .mnb-card-buttons {
  margin-left: auto;
}

.mnb-card-button {
  height: 22px;
  padding: 0 8px;
  border: 1px solid var(--mnb-border);
  border-radius: 2px;
  background: var(--mnb-faint);
  color: inherit;
  font: inherit;
  font-size: 12px;
  line-height: 20px;
  cursor: pointer;
}

.mnb-card-button:hover:enabled {
  border-color: var(--mnb-strong);
}

.mnb-card-button:focus-visible {
  outline: 2px solid var(--mnb-busy);
  outline-offset: 1px;
}

.mnb-card-button:disabled {
  opacity: 0.45;
  cursor: default;
}

/* Wide enough for its question, too. */
.mnb-card-stop {
  min-width: 62px;
}

.mnb-card-stop.mnb-sure {
  border-color: var(--mnb-bad);
  background: color-mix(in srgb, var(--mnb-bad) 18%, transparent);
}

.mnb-nearly-up {
  padding-left: 6px;
  color: var(--mnb-text);
  border-left: 3px solid var(--mnb-bad);
  font-weight: 600;
}

.mnb-card-facts {
  display: flex;
  flex-wrap: wrap;
  gap: 0 16px;
  color: var(--mnb-dim);
  font-size: 12px;
}

.mnb-card-ended {
  margin-top: 4px;
  padding-left: 6px;
  border-left: 3px solid var(--mnb-strong);
}

.mnb-card-hosts {
  overflow: auto;
  max-height: 184px;
  margin-top: 6px;
  outline-offset: -1px;
}

/* Notebooks style tables in outputs: borders, stripes and alignment are undone here. */
.mnb-card .mnb-card-hosts table {
  width: auto;
  margin: 0;
  border: 0;
  border-collapse: collapse;
  color: inherit;
  font-size: 12px;
  table-layout: auto;
}

.mnb-card .mnb-card-hosts tr {
  background: none;
}

.mnb-card .mnb-card-hosts :is(th, td) {
  max-width: none;
  height: 20px;
  padding: 0 16px 0 0;
  border: 0;
  background: none;
  font-weight: normal;
  line-height: 20px;
  text-align: left;
  vertical-align: middle;
  white-space: nowrap;
}

.mnb-card .mnb-card-hosts thead th {
  position: sticky;
  top: 0;
  z-index: 1;
  background: var(--mnb-page);
  color: var(--mnb-dim);
  font-size: 11px;
}

.mnb-card-host-words {
  display: flex;
  min-width: 8ch;
  max-width: 30ch;
}

.mnb-no-gpus :is(th, td):last-child {
  display: none;
}

.mnb-card-host-words > .mnb-ellipsis {
  overflow: hidden;
  min-width: 0;
  text-overflow: ellipsis;
}

.mnb-card-host-state {
  margin-left: 6px;
  color: var(--mnb-dim);
}

.mnb-card-host-lost .mnb-card-host-state {
  color: var(--mnb-bad);
}

.mnb-card-host-notes {
  color: var(--mnb-dim);
  white-space: pre-wrap;
}

.mnb-card-host-state:empty {
  margin: 0;
}

.mnb-card-bar,
.mnb-card-gpu {
  display: inline-block;
  overflow: hidden;
  border-radius: 1px;
  background: color-mix(in srgb, var(--mnb-dim) 20%, transparent);
  vertical-align: middle;
}

.mnb-card-bar {
  width: 48px;
  height: 8px;
  margin-right: 6px;
}

.mnb-card-gpu {
  width: 6px;
  height: 14px;
  margin-right: 2px;
}

.mnb-card-bar > span,
.mnb-card-gpu > span {
  display: block;
  width: 100%;
  height: 100%;
  background: var(--mnb-busy);
  transform: scale(0);
  transform-origin: bottom left;
}

.mnb-card-bar.mnb-high > span {
  background: var(--mnb-warn);
}

.mnb-card-number {
  display: inline-block;
  min-width: 4ch;
}

.mnb-card-meter:nth-child(3) .mnb-card-number {
  min-width: 7ch;
}

.mnb-card-ranks {
  display: grid;
  grid-template-columns: minmax(0, 1fr) 280px;
  gap: 10px 20px;
  align-items: start;
  margin-top: 10px;
}

.mnb-card-details,
.mnb-card-hint {
  padding-left: 12px;
  border-left: 1px solid var(--mnb-border);
  background: var(--mnb-page);
}

.mnb-card-hint {
  color: var(--mnb-dim);
  font-size: 12px;
}

.mnb-card-details-title {
  font-weight: 600;
}

.mnb-card .mnb-card-details dl {
  display: grid;
  grid-template-columns: max-content minmax(0, 1fr);
  gap: 0 12px;
  margin: 2px 0 6px;
  font-size: 12px;
  line-height: 18px;
}

.mnb-card .mnb-card-details :is(dt, dd) {
  float: none;
  width: auto;
  margin: 0;
  padding: 0;
  font-weight: normal;
}

.mnb-card .mnb-card-details dt {
  color: var(--mnb-dim);
}

.mnb-card .mnb-card-details dd {
  overflow: hidden;
  white-space: nowrap;
  text-overflow: ellipsis;
}

/* Why a rank was lost is worth the room. */
.mnb-card .mnb-card-details dd[data-row='state'] {
  white-space: normal;
  overflow-wrap: anywhere;
}

.mnb-card .mnb-card-details dd:is([data-row='line'], [data-row='last']) {
  font-family: var(--jp-code-font-family, ui-monospace, monospace);
  font-size: 11px;
}

.mnb-card-answer {
  margin-top: 10px;
  border: 1px solid var(--mnb-border);
  border-radius: 2px;
}

.mnb-card-answer.mnb-error {
  border-color: var(--mnb-bad);
}

.mnb-card-answer-head {
  display: flex;
  justify-content: space-between;
  align-items: center;
  padding: 1px 2px 1px 8px;
  background: var(--mnb-faint);
  font-size: 12px;
}

.mnb-card-answer-head .mnb-card-button {
  border-color: transparent;
  background: none;
}

.mnb-card .mnb-card-answer pre {
  overflow: auto;
  max-height: 240px;
  margin: 0;
  padding: 4px 8px;
  border: 0;
  background: none;
  color: inherit;
  font-family: var(--jp-code-font-family, ui-monospace, monospace);
  font-size: 12px;
  line-height: 1.35;
  white-space: pre-wrap;
  overflow-wrap: anywhere;
}

.mnb-card.mnb-ended .mnb-card-hosts {
  filter: grayscale(1);
  opacity: 0.6;
}

.mnb-note {
  margin-top: 4px;
  color: var(--jp-ui-font-color2, inherit);
  font-family: var(--jp-ui-font-family, system-ui, sans-serif);
  font-size: 12px;
}

/* For screen readers only. */
.mnb-unseen {
  position: absolute;
  overflow: hidden;
  width: 1px;
  height: 1px;
  clip-path: inset(50%);
  white-space: nowrap;
}

/* The sidebar. */
@container (max-width: 320px) {
  :is(.mnb-grid-medium, .mnb-grid-large) .mnb-line-label {
    width: 2ch;
    padding-right: 4px;
  }

  .mnb-cell-state {
    font-size: 10px;
  }

  .mnb-grid-medium .mnb-cell {
    width: 30px;
    padding: 0 3px;
  }

  .mnb-grid-large .mnb-cell {
    width: 58px;
    padding: 3px 4px;
  }
}

@container (max-width: 640px) {
  .mnb-card-ranks {
    grid-template-columns: minmax(0, 1fr);
  }

  .mnb-card-hint {
    display: none;
  }

  .mnb-card-details {
    padding: 6px 0 0;
    border-top: 1px solid var(--mnb-border);
    border-left: 0;
  }
}

@container (max-width: 420px) {
  .mnb-card-head .mnb-card-buttons {
    margin-left: 0;
  }

  .mnb-card-bar {
    display: none;
  }

  .mnb-card .mnb-card-hosts :is(th, td) {
    padding-right: 10px;
  }

  .mnb-card .mnb-card-hosts :is(th, td):last-child {
    padding-right: 0;
  }

  .mnb-card-host-words {
    max-width: 14ch;
  }

  .mnb-card-gpu {
    width: 5px;
    margin-right: 1px;
  }
}
`,""]),e.d(n,{},{A:i})},"./node_modules/css-loader/dist/runtime/api.js"(r){r.exports=function(r){var n=[];return n.toString=function(){return this.map(function(n){var e="",o=void 0!==n[5];return n[4]&&(e+="@supports (".concat(n[4],") {")),n[2]&&(e+="@media ".concat(n[2]," {")),o&&(e+="@layer".concat(n[5].length>0?" ".concat(n[5]):""," {")),e+=r(n),o&&(e+="}"),n[2]&&(e+="}"),n[4]&&(e+="}"),e}).join("")},n.i=function(r,e,o,a,t){"string"==typeof r&&(r=[[null,r,void 0]]);var i={};if(o)for(var l=0;l<this.length;l++){var d=this[l][0];null!=d&&(i[d]=!0)}for(var s=0;s<r.length;s++){var m=[].concat(r[s]);o&&i[m[0]]||(void 0!==t&&(void 0===m[5]||(m[1]="@layer".concat(m[5].length>0?" ".concat(m[5]):""," {").concat(m[1],"}")),m[5]=t),e&&(m[2]&&(m[1]="@media ".concat(m[2]," {").concat(m[1],"}")),m[2]=e),a&&(m[4]?(m[1]="@supports (".concat(m[4],") {").concat(m[1],"}"),m[4]=a):m[4]="".concat(a)),n.push(m))}},n}},"./node_modules/css-loader/dist/runtime/noSourceMaps.js"(r){r.exports=function(r){return r[1]}},"./node_modules/style-loader/dist/runtime/injectStylesIntoStyleTag.js"(r){var n=[];function e(r){for(var e=-1,o=0;o<n.length;o++)if(n[o].identifier===r){e=o;break}return e}function o(r,o){for(var a={},t=[],i=0;i<r.length;i++){var l=r[i],d=o.base?l[0]+o.base:l[0],s=a[d]||0,m="".concat(d," ").concat(s);a[d]=s+1;var p=e(m),b={css:l[1],media:l[2],sourceMap:l[3],supports:l[4],layer:l[5]};if(-1!==p)n[p].references++,n[p].updater(b);else{var c=function(r,n){var e=n.domAPI(n);return e.update(r),function(n){n?(n.css!==r.css||n.media!==r.media||n.sourceMap!==r.sourceMap||n.supports!==r.supports||n.layer!==r.layer)&&e.update(r=n):e.remove()}}(b,o);o.byIndex=i,n.splice(i,0,{identifier:m,updater:c,references:1})}t.push(m)}return t}r.exports=function(r,a){var t=o(r=r||[],a=a||{});return function(r){r=r||[];for(var i=0;i<t.length;i++){var l=e(t[i]);n[l].references--}for(var d=o(r,a),s=0;s<t.length;s++){var m=e(t[s]);0===n[m].references&&(n[m].updater(),n.splice(m,1))}t=d}}},"./node_modules/style-loader/dist/runtime/insertBySelector.js"(r){var n={};r.exports=function(r,e){var o=function(r){if(void 0===n[r]){var e=document.querySelector(r);if(window.HTMLIFrameElement&&e instanceof window.HTMLIFrameElement)try{e=e.contentDocument.head}catch(r){e=null}n[r]=e}return n[r]}(r);if(!o)throw Error("Couldn't find a style target. This probably means that the value for the 'insert' parameter is invalid.");o.appendChild(e)}},"./node_modules/style-loader/dist/runtime/insertStyleElement.js"(r){r.exports=function(r){var n=document.createElement("style");return r.setAttributes(n,r.attributes),r.insert(n,r.options),n}},"./node_modules/style-loader/dist/runtime/setAttributesWithoutAttributes.js"(r,n,e){r.exports=function(r){var n=e.nc;n&&r.setAttribute("nonce",n)}},"./node_modules/style-loader/dist/runtime/styleDomAPI.js"(r){r.exports=function(r){if("u"<typeof document)return{update:function(){},remove:function(){}};var n=r.insertStyleElement(r);return{update:function(e){var o,a,t;o="",e.supports&&(o+="@supports (".concat(e.supports,") {")),e.media&&(o+="@media ".concat(e.media," {")),(a=void 0!==e.layer)&&(o+="@layer".concat(e.layer.length>0?" ".concat(e.layer):""," {")),o+=e.css,a&&(o+="}"),e.media&&(o+="}"),e.supports&&(o+="}"),(t=e.sourceMap)&&"u">typeof btoa&&(o+="\n/*# sourceMappingURL=data:application/json;base64,".concat(btoa(unescape(encodeURIComponent(JSON.stringify(t))))," */")),r.styleTagTransform(o,n,r.options)},remove:function(){var r;null===(r=n).parentNode||r.parentNode.removeChild(r)}}}},"./node_modules/style-loader/dist/runtime/styleTagTransform.js"(r){r.exports=function(r,n){if(n.styleSheet)n.styleSheet.cssText=r;else{for(;n.firstChild;)n.removeChild(n.firstChild);n.appendChild(document.createTextNode(r))}}},"./style/index.js"(r,n,e){var o=e("./node_modules/style-loader/dist/runtime/injectStylesIntoStyleTag.js"),a=e.n(o),t=e("./node_modules/style-loader/dist/runtime/styleDomAPI.js"),i=e.n(t),l=e("./node_modules/style-loader/dist/runtime/insertBySelector.js"),d=e.n(l),s=e("./node_modules/style-loader/dist/runtime/setAttributesWithoutAttributes.js"),m=e.n(s),p=e("./node_modules/style-loader/dist/runtime/insertStyleElement.js"),b=e.n(p),c=e("./node_modules/style-loader/dist/runtime/styleTagTransform.js"),g=e.n(c),u=e("./node_modules/css-loader/dist/cjs.js!./style/base.css"),f={};f.styleTagTransform=g(),f.setAttributes=m(),f.insert=d().bind(null,"head"),f.domAPI=i(),f.insertStyleElement=b(),a()(u.A,f),u.A&&u.A.locals&&u.A.locals;var x=e("./node_modules/css-loader/dist/cjs.js!./style/card.css"),h={};h.styleTagTransform=g(),h.setAttributes=m(),h.insert=d().bind(null,"head"),h.domAPI=i(),h.insertStyleElement=b(),a()(x.A,h),x.A&&x.A.locals&&x.A.locals}}]);