var B=`/*
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
`;function o(r,t="",e=""){let n=document.createElement(r);return n.className=t,n.textContent=e,n}function d(r,t){r.textContent!==t&&(r.textContent=t)}function m(r,t,e){(r.getAttribute(t)??"")!==e&&(e?r.setAttribute(t,e):r.removeAttribute(t))}var ht=4e3,k=class{constructor(t,e){this._actions=t;this._t=e;this._interrupt=this._button(e("Interrupt"),e("Interrupt the cell that runs"),()=>this._run(e("Interrupt"),()=>t.interrupt())),this._heal=this._button(e("Heal"),e("Put lost ranks back"),()=>this._run(e("Heal"),()=>t.heal())),this._stop=this._button(e("Stop"),e("Stop the mesh: its ranks and what they hold are gone"),()=>this._onStop()),this._stop.classList.add("mnb-card-stop"),this.forMesh.append(this._interrupt,this._heal,this._stop),this.forRank.append(this._button(e("Stack"),e("Where its threads stand"),()=>this._ask("stack")),this._button(e("Last lines"),e("What it has written last"),()=>this._ask("lines")));let n=this._button("×",e("Close"),()=>this._close());n.setAttribute("aria-label",e("Close"));let s=o("div","mnb-card-answer-head");s.append(this._answerTitle,n),this._answerText.tabIndex=0,this.answer.append(s,this._answerText),this.answer.hidden=!0,this.answer.setAttribute("role","status")}_actions;_t;forMesh=o("div","mnb-card-buttons");forRank=o("div","mnb-card-buttons");answer=o("div","mnb-card-answer");_answerTitle=o("div","mnb-card-answer-title");_answerText=o("pre");_interrupt;_heal;_stop;_rank=null;_confirming=null;_numAsked=0;_isDisposed=!1;select(t){this._rank=t}enable(t,e){this._interrupt.disabled=this._stop.disabled=!t;let n=e.ranks.some(s=>s.state==="lost")||e.hosts.some(s=>s.state==="lost");this._heal.disabled=!t||!n||e.is_healing;for(let s of this.forRank.querySelectorAll("button"))s.disabled=!t}dispose(){this._isDisposed=!0,clearTimeout(this._confirming??void 0)}_button(t,e,n){let s=o("button","mnb-card-button",t);return s.type="button",s.title=e,s.addEventListener("click",n),s}_ask(t){let e=this._rank;if(e!==null)if(t==="stack")this._run(this._t("Stack of rank %1",e),()=>this._actions.stacks(String(e)));else{let n=this._t("It has written nothing.");this._run(this._t("Last lines of rank %1",e),()=>this._actions.lastLines(e),n)}}_onStop(){if(this._confirming===null){d(this._stop,this._t("Really?")),this._stop.classList.add("mnb-sure"),this._confirming=setTimeout(()=>this._calm(),ht);return}this._calm(),this._run(this._t("Stop"),()=>this._actions.stop())}_calm(){clearTimeout(this._confirming??void 0),this._confirming=null,d(this._stop,this._t("Stop")),this._stop.classList.remove("mnb-sure")}_run(t,e,n=this._t("Done.")){let s=++this._numAsked,i=(a,l)=>{s===this._numAsked&&!this._isDisposed&&this._show(t,a,l)};this._show(t,this._t("Asked; waiting for an answer ..."),!1),e().then(a=>i(a||n,!1),a=>i(a instanceof Error?a.message:String(a),!0))}_show(t,e,n){d(this._answerTitle,t),d(this._answerText,e),this.answer.classList.toggle("mnb-error",n),this.answer.hidden=!1}_close(){this._numAsked+=1,this.answer.hidden=!0}};var u=(r,...t)=>r.replace(/%(\d)/g,(e,n)=>String(t[Number(n)-1]??e));var ct=["idle","busy","debugging","starting","stopping","stopped","unresponsive","lost"],mt=new Set(["lost","unresponsive","stopped"]),ut=new Set(["busy","debugging"]);function h(r){if(r===null)return"n/a";let t=["B","KiB","MiB","GiB","TiB"],e=r,n=0;for(;e>=1023.5&&n<t.length-1;)e/=1024,n+=1;return`${e<999.5?X(e):Math.round(e)} ${t[n]}`}function f(r){let t=Math.max(0,r);for(let[e,n]of[[86400,"d"],[3600,"h"],[60,"min"]])if(t>=2*e||t>=e&&t%e===0)return`${Math.floor(t/e)} ${n}`;return`${Math.floor(t)} s`}function _(r){return r===null?"n/a":`${Math.round(r)}%`}function K(r,t=Date.now()/1e3){let e=new Date(r*1e3),n=e.toLocaleTimeString([],{hour:"2-digit",minute:"2-digit",second:"2-digit"});return e.toDateString()===new Date(t*1e3).toDateString()?n:bt(r)}function bt(r){return new Date(r*1e3).toLocaleString([],{day:"numeric",month:"short",year:"numeric",hour:"2-digit",minute:"2-digit",second:"2-digit"})}function S(r){let t=[...new Set(r)].sort((n,s)=>n-s),e=[];for(let n=0;n<t.length;n++){let s=t[n];for(;t[n+1]===t[n]+1;)n+=1;e.push(s===t[n]?`${s}`:`${s}-${t[n]}`)}return e.join(",")}function W(r,t=u){let e=ct.filter(s=>r[s]),n=Object.keys(r).filter(s=>r[s]&&!e.includes(s));return[...e,...n].map(s=>`${r[s]} ${b(s,t)}`).join(", ")}function q(r){let t={};for(let{state:e}of r)t[e]=(t[e]??0)+1;return t}function F(r){return r.map(([t,e])=>`${t}=${e}`).join(", ")}function V(r){return r.ranks.some(t=>mt.has(t.state))||r.hosts.some(t=>t.state==="lost")?"trouble":r.ranks.some(t=>ut.has(t.state))?"busy":"ok"}function b(r,t=u){return gt[r]?.(t)??r}function v(r,t=u){let e=t("rank %1, %2",r.rank,b(r.state,t)),n=r.reason||r.doing;return n?`${e}: ${n}`:e}var gt={starting:r=>r("starting"),idle:r=>r("idle"),busy:r=>r("busy"),debugging:r=>r("debugging"),unresponsive:r=>r("unresponsive"),stopping:r=>r("stopping"),stopped:r=>r("stopped"),lost:r=>r("lost"),expected:r=>r("expected"),up:r=>r("up"),leaving:r=>r("leaving")};function X(r){return String(Number(r.toPrecision(3)))}function Y(r,t){return(r??[]).map(({path:e,read_bytes:n,written_bytes:s,seconds:i})=>{let a=n+s,l=i>0?X(a/i/1e9):"0";return t("%1 %2, %3 GB/s",e,h(a),l)}).join("; ")}function J({name:r,sequence:t,shape:e,dtype:n}){let s=t>0?` #${t}`:"",i=e?` ${n}[${e.join(", ")}]`:"";return`${r}${s}${i}`}function Q({ends_at:r,job:t,cost:e},n,s=Date.now()/1e3){let i=typeof r!="number"?"":r>s?n("%1 left",f(r-s)):n("the hosts' time is up"),a=_t(e,n,s);return i||a?[t,i,a].filter(Boolean).join(", "):""}function Z(r,t=Date.now()/1e3){return typeof r=="number"&&r-t<600}function _t(r,t,e=Date.now()/1e3){if(!r)return"";let n=r.usd+r.usd_per_hour*Math.max(0,e-r.counted_at)/3600,s=r.num_gpus===1?t("1 GPU"):t("%1 GPUs",r.num_gpus);return t("%1, about %2 $ so far",s,n.toFixed(2))}function tt(r,t=u){let e=new Map;for(let{index:n,differs:s}of r)s&&e.set(s,[...e.get(s)??[],n]);return[...e].map(([n,s])=>s.length>1?t("Hosts %1 differ: %2",S(s),n):t("Host %1 differs: %2",S(s),n))}var ft=1e3,vt="–",T=class{constructor(t,e,n){this._store=t;this._t=e;this._isLive=n;this.hint=o("div","mnb-card-hint",e("Select a rank to see what it does.")),this.node.hidden=!0,this.node.append(this._title,this._list())}_store;_t;_isLive;node=o("section","mnb-card-details");hint;_title=o("div","mnb-card-details-title");_values=new Map;_rank=null;_timer=null;get rank(){return this._rank}set rank(t){this._rank=t,this.show()}show(){let t=this._rank===null?void 0:this._store.rank(this._rank);this.node.hidden=t===void 0,this.hint.hidden=t!==void 0,t&&this._show(t),this._tick(t!==void 0&&this._isCounting)}dispose(){this._tick(!1)}get _isCounting(){return this._isLive&&this._store.ended===null}_list(){let t=this._t,e=[["state",t("State")],["doing",t("Doing")],["line",t("At")],["collective",t("Collective")],["where",t("Where")],["load",t("Load")],["gpus",t("GPU")],["queued",t("Waiting")],["moved",t("Moved")],["last",t("Last output")]],n=o("dl");for(let[s,i]of e){let a=o("dd");a.dataset.row=s,this._values.set(s,a),n.append(o("dt","",i),a)}return n}_show(t){let e=this._t,n=e("Rank %1",t.rank);d(this._title,n),m(this.node,"aria-label",n),this._put("state",t.reason?`${this._stateText(t)}: ${t.reason}`:this._stateText(t)),this._put("doing",t.doing),this._put("line",t.line),this._put("collective",t.collective?this._since(J(t.collective),t.collective.since):"");let s=this._store.host(t.host)?.hostname??e("host %1",t.host);this._put("where",e("%1, pid %2",s,t.pid)),this._put("load",e("CPU %1, memory %2",_(t.cpu_percent),h(t.memory_bytes))),this._put("gpus",this._gpuText(t)),this._put("queued",t.num_queued?String(t.num_queued):""),this._put("moved",Y(t.transfers,e)),this._put("last",t.last_line)}_put(t,e){let n=this._values.get(t);n&&(d(n,e||vt),m(n,"title",e))}_stateText(t){return this._since(b(t.state,this._t),t.since)}_since(t,e){return e?this._isCounting?this._t("%1 for %2",t,f(Date.now()/1e3-e)):this._t("%1 since %2",t,K(e)):t}_gpuText(t){if(t.gpus.length===0)return"";let e=t.gpus.join(", ");return t.gpu_memory_bytes===null?e:this._t("%1, memory %2",e,h(t.gpu_memory_bytes))}_tick(t){t&&this._timer===null?this._timer=setInterval(()=>this._count(),ft):!t&&this._timer!==null&&(clearInterval(this._timer),this._timer=null)}_count(){!document.hidden&&xt(this.node)&&this.show()}};function xt(r){return typeof r.checkVisibility=="function"?r.checkVisibility():r.isConnected}var wt=90,I=class{constructor(t,e){this._store=t;this._t=e;let n=o("tr");n.append(...[e("Host"),e("CPU"),e("Memory"),e("GPUs")].map(a=>{let l=o("th","",a);return l.scope="col",l}));let s=o("thead");s.append(n);let i=o("table");i.append(s,this._body),this.node.append(i,this._notes),this.node.tabIndex=0,this.node.setAttribute("role","region"),this.node.setAttribute("aria-label",e("Hosts"))}_store;_t;node=o("div","mnb-card-hosts");_body=o("tbody");_notes=o("div","mnb-card-host-notes");_lines=new Map;show(){let t=this._store.status?.hosts??[];for(let e of t)this._line(e.index).show(e);if(this._lines.size>t.length){let e=new Set(t.map(n=>n.index));for(let[n,s]of this._lines)e.has(n)||(s.node.remove(),this._lines.delete(n))}this._showNotes(t),this.node.hidden=t.length===0,this.node.classList.toggle("mnb-no-gpus",!t.some(e=>e.gpus.length>0))}_showNotes(t){let e=tt(t,this._t);d(this._notes,e.join(`
`)),this._notes.hidden=e.length===0}_line(t){let e=this._lines.get(t);return e||(e=new N(this._t),this._lines.set(t,e),this._body.append(e.node)),e}},N=class{constructor(t){this._t=t;let e=o("th");e.scope="row";let n=o("span","mnb-card-host-words");n.append(this._name,this._state),e.append(n),this.node.append(e,this._cpu.node,this._memory.node,this._gpus)}_t;node=o("tr");_name=o("span","mnb-ellipsis");_state=o("span","mnb-card-host-state");_cpu=new M;_memory=new M;_gpus=o("td","mnb-card-gpus");_shown=null;show(t){if(t===this._shown)return;this._shown=t;let e=this._t;d(this._name,t.hostname),m(this._name,"title",e("%1, %2 cores, pid %3",t.hostname,t.num_cores,t.pid)),d(this._state,t.state==="up"?"":b(t.state,e)),this.node.className=`mnb-card-host-${t.state}`,this._cpu.show(t.cpu_percent,_(t.cpu_percent),"");let{memory_used_bytes:n,memory_total_bytes:s}=t;this._memory.show(kt(n,s),h(n),e("%1 of %2",h(n),h(s))),this._showGpus(t.gpus)}_showGpus(t){for(;this._gpus.childElementCount>t.length;)this._gpus.lastElementChild?.remove();for(;this._gpus.childElementCount<t.length;){let e=o("span","mnb-card-gpu");e.setAttribute("role","img"),e.append(o("span")),this._gpus.append(e)}t.forEach((e,n)=>this._showGpu(this._gpus.children[n],e))}_showGpu(t,e){let n=this._t("GPU %1, %2: %3, memory %4 of %5",e.index,e.name,_(e.utilization_percent),h(e.memory_used_bytes),h(e.memory_total_bytes));m(t,"title",n),m(t,"aria-label",n),et(t,"height",e.utilization_percent)}},M=class{node=o("td","mnb-card-meter");_bar=o("span","mnb-card-bar");_number=o("span","mnb-card-number","n/a");constructor(){this._bar.setAttribute("aria-hidden","true"),this._bar.append(o("span")),this.node.append(this._bar,this._number)}show(t,e,n){et(this._bar,"width",t),d(this._number,e),m(this.node,"title",n)}};function et(r,t,e){let n=Math.min(Math.max(e??0,0),100)/100,s=r.firstElementChild,i=`scale${t==="width"?"X":"Y"}(${Number(n.toFixed(2))})`;s.style.transform!==i&&(s.style.transform=i),r.classList.toggle("mnb-high",(e??0)>=wt)}function kt(r,t){return r===null||!t?null:100*r/t}var St={starting:"…",idle:"·",busy:"▸",debugging:"‖",unresponsive:"?",stopping:"…",stopped:"■",lost:"×"},R=class{node=o("span");_state=null;_doing=null;_shown;_className="";_label="";_isSelected=!1;constructor(t,e){this.node.dataset.rank=String(t),this.node.setAttribute("role","gridcell"),this.node.setAttribute("aria-label",String(t)),this.node.tabIndex=-1,this._class("mnb-cell"),e!=="small"&&(this._part("mnb-cell-number",String(t)),this._state=this._part(e==="large"?"mnb-cell-state":"mnb-cell-glyph",""),this._doing=e==="large"?this._part("mnb-cell-doing",""):null)}show(t,e){if(!t||t===this._shown)return;t.state!==this._shown?.state&&(this._class(`mnb-cell mnb-${t.state}`),nt(this._state,this._doing?b(t.state,e):St[t.state]??"")),this._shown=t,nt(this._doing,t.reason||t.doing);let n=v(t,e);n!==this._label&&(this._label=n,this.node.setAttribute("aria-label",n))}select(t){this._isSelected=t,this.node.classList.toggle("mnb-selected",t),this.node.setAttribute("aria-selected",String(t))}setReachable(t){this.node.tabIndex=t?0:-1}setTitle(t){this.node.title!==t&&(this.node.title=t)}_class(t){t!==this._className&&(this._className=t,this.node.className=this._isSelected?`${t} mnb-selected`:t)}_part(t,e){let n=o("span",t),s=document.createTextNode(e);return n.append(s),this.node.append(n),s}};function nt(r,t){r&&r.data!==t&&(r.data=t)}var Tt={large:4,medium:8,small:16},It={large:8,medium:8,small:32},H=4;function ot(r,t,e=!1){let n=Mt(r,t),[s,i]=n[n.length-1],a=Rt(t,e),l=Lt(i,Tt[a]);if(n.length===1){let C=rt(0,i,l).map(g=>({label:a==="small"?String(g[0]):"",name:`${s}=${g[0]}-${g[g.length-1]}`,ranks:g}));return{size:a,down:"",right:s,blocks:[{label:"",groups:it(st(C,a),1,a)}]}}let[c,p]=n[n.length-2],x=At(n.slice(0,-2)).map((C,g)=>{let P=[];for(let y=0;y<p;y++){let D=(g*p+y)*i;for(let G of rt(D,i,l))P.push({label:G[0]===D?String(y):"",name:`${c}=${y}`,ranks:G})}let U=Math.ceil(i/l);return{label:C,groups:it(U>1?P:st(P,a),U,a)}});return{size:a,down:c,right:s,blocks:x}}function at(r,t){let e=t,n=[];for(let[s,i]of[...r].reverse())n.unshift(`${s}=${e%i}`),e=Math.floor(e/i);return e===0?n.join(", "):""}function Mt(r,t){let e=r.reduce((s,[,i])=>s*i,1)===t,n=r.filter(([,s])=>s>1);return e&&n.length>0?n:[[r.length===1?r[0][0]:"ranks",t]]}function Rt(r,t){return r<=8&&!t?"large":r<=64?"medium":"small"}function Lt(r,t){if(r<=t)return r;for(let e=t;e>=t/2;e--)if(r%e===0)return e;return t}function rt(r,t,e){let n=[];for(let s=0;s<t;s+=e)n.push(Array.from({length:Math.min(e,t-s)},(i,a)=>r+s+a));return n}function st(r,t){return t!=="small"||r.length<=8?r:r.map((e,n)=>n%H===0?e:{...e,label:""})}function it(r,t,e){let n=Math.ceil(r.length/It[e]),s=Math.ceil(r.length/n/t)*t,i=e==="small"&&t===1?Math.ceil(s/H)*H:s,a=[];for(let l=0;l<r.length;l+=i)a.push(r.slice(l,l+i));return a}function At(r){return r.reduce((t,[e,n])=>t.flatMap(s=>Array.from({length:n},(i,a)=>s?`${s}, ${e}=${a}`:`${e}=${a}`)),[""])}var L=class{constructor(t,e={}){this._store=t;this._t=e.translate??u,this._onSelect=e.onSelect??(()=>{}),this._isCompact=e.compact??!1,this.node.setAttribute("role","grid"),this.node.dataset.lmSuppressShortcuts="true",this.node.addEventListener("click",n=>this._onClick(n)),this.node.addEventListener("keydown",n=>this._onKey(n)),this.node.addEventListener("pointerover",n=>this._point(this._rankAt(n))),this.node.addEventListener("focusin",n=>this._reach(this._rankAt(n))),this._refresh(null),this._stop=this._store.on(n=>this._refresh(n))}_store;node=o("div","mnb-grid");_t;_onSelect;_isCompact;_stop;_cells=new Map;_lines=[];_shape="";_selected=null;_reachable=null;_pointedAt=null;get selected(){return this._selected}set selected(t){this._cellOf(this._selected)?.select(!1),this._selected=t,this._cellOf(t)?.select(!0),this._reach(t)}dispose(){this._stop()}_cellOf(t){return t===null?void 0:this._cells.get(t)}_refresh(t){let e=this._store.status;if(this.node.classList.toggle("mnb-ended",this._store.ended!==null),!!e){if(t===null){let n=`${JSON.stringify(e.sizes)} ${e.ranks.length}`;n!==this._shape&&(this._shape=n,this._build(ot(e.sizes,e.ranks.length,this._isCompact)))}for(let n of t??this._cells.keys())this._cells.get(n)?.show(this._store.rank(n),this._t),n===this._pointedAt&&this._point(n)}}_build(t){let e=this.node.contains(document.activeElement);this._cells.clear(),this._lines=t.blocks.flatMap(n=>n.groups.flatMap(s=>s.map(i=>i.ranks))),this.node.className=`mnb-grid mnb-grid-${t.size}`,this.node.setAttribute("aria-label",this._t("Ranks")),this.node.replaceChildren(...this._legend(t),...t.blocks.map(n=>this._block(n,t))),this._reachable=null,this.selected=this._cellOf(this._selected)?this._selected:null,this._reach(this._selected??this._lines[0]?.[0]??null),e&&this._cellOf(this._reachable)?.node.focus()}_legend({size:t,down:e,right:n}){if(!e&&t!=="small")return[];let s=o("div","mnb-legend",e?`${e} ↓  ${n} →`:`${n} →`);return s.setAttribute("aria-hidden","true"),[s]}_block(t,e){let n=o("div","mnb-block");if(n.setAttribute("role","rowgroup"),t.label){n.setAttribute("aria-label",t.label);let a=o("div","mnb-block-label",t.label);a.setAttribute("aria-hidden","true"),n.append(a)}let s=t.groups.some(a=>a.some(l=>l.label)),i=o("div","mnb-groups");i.setAttribute("role","presentation");for(let a of t.groups){let l=o("div");l.setAttribute("role","presentation"),l.append(...a.map(c=>this._line(c,s,e))),i.append(l)}return n.append(i),n}_line(t,e,{size:n}){let s=o("div","mnb-line");if(s.setAttribute("role","row"),s.setAttribute("aria-label",t.name),e){let i=o("span","mnb-line-label",t.label);i.setAttribute("aria-hidden","true"),s.append(i)}for(let i of t.ranks){let a=new R(i,n);this._cells.set(i,a),s.append(a.node)}return s}_rankAt(t){let e=t.target instanceof Element?t.target.closest(".mnb-cell"):null;return e?Number(e.dataset.rank):null}_onClick(t){let e=this._rankAt(t);e!==null&&this._select(e===this._selected?null:e)}_select(t){this.selected=t,this._onSelect(t)}_reach(t){let e=this._cellOf(t);e&&t!==this._reachable&&(this._cellOf(this._reachable)?.setReachable(!1),e.setReachable(!0),this._reachable=t)}_onKey(t){let e=this._rankAt(t);if(!(e===null||t.altKey||t.ctrlKey||t.metaKey)){if(t.key==="Enter"||t.key===" ")this._select(e);else if(t.key==="Escape"&&this._selected!==null)this._select(null);else{let n=this._neighbour(e,t.key);if(n===null)return;this._cellOf(n)?.node.focus()}t.preventDefault(),t.stopPropagation()}}_neighbour(t,e){let n=this._lines.findIndex(l=>l.includes(t)),s=this._lines[n],i=s.indexOf(t),a=l=>{let c=this._lines[Math.min(Math.max(l,0),this._lines.length-1)];return c[Math.min(i,c.length-1)]};switch(e){case"ArrowLeft":return s[Math.max(i-1,0)];case"ArrowRight":return s[Math.min(i+1,s.length-1)];case"ArrowUp":return a(n-1);case"ArrowDown":return a(n+1);case"Home":return s[0];case"End":return s[s.length-1];default:return null}}_point(t){this._pointedAt=t;let e=this._cellOf(t);e&&t!==null&&e.setTitle(this._title(t))}_title(t){let e=this._store.rank(t),n=at(this._store.status?.sizes??[],t);if(!e)return n;let s=[this._store.host(e.host)?.hostname??"",this._t("pid %1",e.pid),e.cpu_percent===null?"":this._t("CPU %1",_(e.cpu_percent)),e.memory_bytes===null?"":this._t("memory %1",h(e.memory_bytes))];return[v(e,this._t),n,e.line,s.filter(a=>a).join(", ")].filter(a=>a).join(`
`)}};var A=class{constructor(t,e,n={}){this._store=t;this._t=n.translate??u,this._hosts=new I(t,this._t),this._details=new T(t,this._t,e!==null),this._grid=new L(t,{translate:this._t,onSelect:s=>this._select(s)}),e&&(this._buttons=new k(e,this._t)),this._assemble(),this._show(null),this._stop=t.on(s=>this._show(s))}_store;node=o("div","mnb-card");_t;_stop;_name=o("span","mnb-card-name");_health=o("span","mnb-card-health");_facts=o("div","mnb-card-facts");_shape=o("span");_tally=o("span");_lease=o("span");_limit=o("span");_ended=o("div","mnb-card-ended");_announcement=o("div","mnb-unseen");_hosts;_grid;_details;_buttons=null;_lost=null;dispose(){this._stop(),this._grid.dispose(),this._details.dispose(),this._buttons?.dispose()}_assemble(){let t=o("div","mnb-card-head");t.append(this._name,this._health),this._facts.append(this._shape,this._tally,this._lease,this._limit);let e=o("div","mnb-card-ranks");e.append(this._grid.node,this._details.node,this._details.hint),this._announcement.setAttribute("role","status"),this._announcement.setAttribute("aria-live","polite"),this._ended.hidden=!0,this.node.setAttribute("role","group"),this.node.append(t,this._facts,this._ended,this._hosts.node,e,this._announcement),this._buttons&&(t.append(this._buttons.forMesh),this._details.node.append(this._buttons.forRank),this.node.append(this._buttons.answer))}_select(t){this._details.rank=t,this._buttons?.select(t)}_show(t){let{status:e,ended:n}=this._store;this.node.classList.toggle("mnb-ended",n!==null),this._ended.hidden=n===null,d(this._ended,n===null?"":n||this._t("The mesh has ended.")),e&&(this._showHead(e),this._hosts.show(),this._announce(e),(t===null||n!==null||t.has(this._details.rank??-1))&&this._details.show(),this._buttons?.enable(n===null,e))}_showHead(t){let e=this._t;this.node.setAttribute("aria-label",e("Mesh %1",t.name)),d(this._name,t.name);let n=this._store.ended===null?V(t):"ended",s=`mnb-card-health mnb-health-${n}`;this._health.className!==s&&(this._health.className=s);let i={ok:e("ok"),busy:e("busy"),trouble:e("trouble"),ended:e("ended")};d(this._health,n!=="ended"&&t.is_healing?e("healing"):i[n]),d(this._shape,F(t.sizes)),d(this._tally,e("%1 ranks: %2",t.ranks.length,W(q(t.ranks),e))),d(this._lease,this._store.ended===null?Et(t,e):""),this._limit.classList.toggle("mnb-nearly-up",this._store.ended===null&&Z(t.ends_at)),d(this._limit,this._store.ended===null?Q(t,e):"")}_announce({ranks:t}){let e=t.filter(s=>s.state==="lost"),n=this._lost?e.filter(s=>!this._lost?.has(s.rank)):[];this._lost=new Set(e.map(s=>s.rank)),n.length===1?d(this._announcement,v(n[0],this._t)):n.length>1&&d(this._announcement,this._t("ranks %1, lost: %2",S(n.map(s=>s.rank)),n[0].reason))}};function Et({idle_timeout_s:r,lease_left_s:t},e){return r===null?"":t===null?e("lease: %1",f(r)):e("ends in %1 if nobody comes",f(t))}var lt=new Set,E=class{_status=null;_ended=null;_positions=new Map;_listeners=new Set;get status(){return this._status}get ended(){return this._ended}rank(t){let e=this._positions.get(t);return e===void 0?void 0:this._status?.ranks[e]}host(t){return this._status?.hosts.find(e=>e.index===t)}apply(t){let e=t.type==="status"?this._replace(t.status):this._merge(t);return this._notify(e),e}on(t){return this._listeners.add(t),()=>this._listeners.delete(t)}end(t){this._ended===null&&(this._ended=t,this._notify(lt))}_replace(t){return this._status={...t,hosts:[...t.hosts],ranks:[...t.ranks]},this._index(this._status),null}_merge(t){let e=this._status;if(!e)return lt;Object.assign(e,t.mesh);for(let s of t.hosts)$t(e.hosts,s,i=>i.index===s.index);for(let s of t.ranks){let i=this._positions.get(s.rank)??e.ranks.length;e.ranks[i]=s,this._positions.set(s.rank,i)}if(!t.mesh.sizes)return new Set(t.ranks.map(s=>s.rank));let n=e.sizes.reduce((s,[,i])=>s*i,1);return e.ranks=e.ranks.filter(s=>s.rank<n),this._index(e),null}_index(t){t.ranks.sort((e,n)=>e.rank-n.rank),this._positions.clear(),t.ranks.forEach((e,n)=>this._positions.set(e.rank,n))}_notify(t){for(let e of[...this._listeners])e(t)}};function $t(r,t,e){let n=r.findIndex(e);r[n<0?r.length:n]=t}var j=class extends Error{},w=class extends Error{},O=class{constructor(t,e){this._base=t;this._token=e}_base;_token;async attempt(t){try{return await t(this)}catch(e){if(e instanceof w)return null;throw e}}get(t){return this._request("GET",t)}post(t,e){return this._request("POST",t,JSON.stringify(e))}delete(t){return this._request("DELETE",t)}async _request(t,e,n){let s;try{s=await fetch(`${this._base}monarch_nb/api/${e}`,{method:t,body:n,headers:this._headers(),credentials:"same-origin",cache:"no-store"})}catch{throw new w}if(s.status===404)throw new w;let i=await s.json().catch(()=>null);if(!s.ok){let a=i?.message;throw new j(a||`The Jupyter server answered ${s.status} ${s.statusText}`.trim())}return i}_headers(){let t={"Content-Type":"application/json"},e=/(?:^|;\s*)_xsrf=([^;]+)/.exec(document.cookie)?.[1];return e&&(t["X-XSRFToken"]=decodeURIComponent(e)),this._token&&(t.Authorization=`token ${this._token}`),t}};function dt(){let r=document.getElementById("jupyter-config-data")?.textContent;if(!r)return null;try{let{baseUrl:t,token:e}=JSON.parse(r),n=new URL(t??"/",location.href);return n.origin===location.origin?new O(n.href.replace(/\/*$/,"/"),e??""):null}catch{return null}}var zt=50,Ct=0,$=class{constructor(t,e){this._model=t;this._mesh=e;t.on("msg:custom",this._onMessage)}_model;_mesh;_pending=new Map;_server=dt();_onMessage=t=>this._take(t);interrupt(t=""){return this._do("interrupt",t,e=>e.post(`${this._address}/interrupt`,t?{ranks:t}:{}).then(()=>""))}heal(){return this._do("heal","",t=>t.post(`${this._address}/heal`,{}).then(e=>e?.report??""))}stop(){return this._do("stop","",t=>t.delete(this._address).then(()=>""))}stacks(t){let e=new URLSearchParams({ranks:t});return this._do("stacks",t,n=>n.get(`${this._address}/stacks?${e}`).then(s=>s?.text??""))}lastLines(t){let e=new URLSearchParams({ranks:String(t),limit:String(zt)});return this._do("lines",String(t),n=>n.get(`${this._address}/logs?${e}`).then(s=>Pt(s?.lines??[])))}dispose(){this._model.off("msg:custom",this._onMessage);for(let{reject:t}of this._pending.values())t(new Error("The view was closed"));this._pending.clear()}get _address(){return`meshes/${encodeURIComponent(this._mesh())}`}async _do(t,e,n){if(this._server){let s=await this._server.attempt(n);if(s!==null)return s}return this._askKernel(t,e)}_askKernel(t,e){let n=`${++Ct}-${Math.random().toString(36).slice(2)}`;return new Promise((s,i)=>{this._pending.set(n,{resolve:s,reject:i}),this._model.send({kind:"action",id:n,action:t,ranks:e})})}_take(t){let e=t?.kind==="answer"?this._pending.get(t.id):void 0;e&&(this._pending.delete(t.id),t.ok?e.resolve(t.text):e.reject(new Error(t.text)))}};function Pt(r){return r.map(t=>t.text).join(`
`)}var z=new Map;function Nt(r){let t=z.get(r);if(t)return t.numViews+=1,t;let e=new E,n=()=>{let p=r.get("snapshot");p?.ranks&&e.apply({type:"status",status:p})},s=()=>{let p=r.get("delta");p?.ranks&&e.apply({type:"delta",mesh:p.mesh,hosts:p.hosts,ranks:p.ranks})},i=()=>{let p=r.get("ended");p&&e.end(p)};n(),i();let a={"change:snapshot":n,"change:delta":s,"change:ended":i};Object.entries(a).forEach(([p,x])=>r.on(p,x));let c={store:e,numViews:1,stop:()=>Object.entries(a).forEach(([p,x])=>r.off(p,x))};return z.set(r,c),c}function Ht(r){let t=z.get(r);t&&--t.numViews===0&&(t.stop(),z.delete(r))}function jt({model:r,el:t}){let{store:e}=Nt(r),n=new $(r,()=>e.status?.name??""),s=new A(e,n),i=o("style","",B);return t.append(i,s.node),r.send({kind:"view",visible:!0}),()=>{r.send({kind:"view",visible:!1}),s.dispose(),n.dispose(),Ht(r),i.remove(),s.node.remove()}}var ye={render:jt};export{ye as default};
