import * as React from 'react';
import { untranslated, type Translate } from './words';

/** How components translate what they show. */
export const TranslateContext = React.createContext<Translate>(untranslated);

/** Return the translate function of the surrounding widget. */
export function useTranslate(): Translate {
  return React.useContext(TranslateContext);
}
