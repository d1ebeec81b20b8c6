// How a search orders what it finds: as Sphinx does, but for the decisions, which come last.
var Scorer = {
  score: ([page, _title, _anchor, _description, score]) => page.startsWith("decisions/") ? score - 100 : score,
  objNameMatch: 11,
  objPartialMatch: 6,
  objPrio: {0: 15, 1: 5, 2: -5},
  objPrioDefault: 0,
  title: 15,
  partialTitle: 7,
  term: 5,
  partialTerm: 2,
};
