import { LabIcon } from '@jupyterlab/ui-components';
import meshSvg from '../style/icons/mesh.svg';

/** A small grid of nodes; one of them is hollow. */
export const meshIcon = new LabIcon({ name: 'monarch-nb:mesh', svgstr: meshSvg });
