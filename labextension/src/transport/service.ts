import { Token } from '@lumino/coreutils';
import type { Api } from './api';
import type { Stream } from './stream';

/** The connection of a page to the server extension, opened with the first watch. */
export interface IMeshService {
  readonly api: Api;
  readonly stream: Stream;
}

export const IMeshService = new Token<IMeshService>(
  'monarch-nb:IMeshService',
  'The connection to the meshes of this user, shared by all that shows them.'
);
