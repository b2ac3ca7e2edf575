"use strict";
(() => {
  const one = (selector, from = document) => from.querySelector(selector);
{% include "theme.js" %}

})();
