// SPDX-License-Identifier: Apache-2.0
// What the page can do beyond being read: tables that sort and filter, a pointer in the charts and the maps.
'use strict';
(() => {
  const all = (selector, within = document) => Array.from(within.querySelectorAll(selector));

  // Texts of a state page are only ever set as text.
  const make = (name, attributes = {}, text = '') => {
    const element = document.createElement(name);
    for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
    element.textContent = text;
    return element;
  };

  // --- tables

  // Of 64 bits: more than a number of JavaScript holds exactly.
  const keyOf = (row, column) => {
    const datum = row.cells[column].querySelector('data');
    const isNumber = row.cells[column].classList.contains('n');
    return isNumber ? BigInt(datum ? datum.value : -1) : row.cells[column].textContent;
  };

  const sort = (table, column) => {
    const heads = Array.from(table.tHead.rows[0].cells);
    const isNumber = heads[column].classList.contains('n');
    const before = heads[column].getAttribute('aria-sort');
    const order = before ? (before === 'ascending' ? 'descending' : 'ascending')
      : (isNumber ? 'descending' : 'ascending');
    const sign = order === 'ascending' ? 1 : -1;
    const rows = Array.from(table.tBodies[0].rows, row => [keyOf(row, column), row]);
    rows.sort((a, b) => a[0] < b[0] ? -sign : a[0] > b[0] ? sign : 0);
    table.tBodies[0].append(...rows.map(pair => pair[1]));
    for (const head of heads) head.removeAttribute('aria-sort');
    heads[column].setAttribute('aria-sort', order);
  };

  const addSorting = table => {
    Array.from(table.tHead.rows[0].cells).forEach((head, column) => {
      const button = make('button', {type: 'button'}, head.textContent);
      button.addEventListener('click', () => sort(table, column));
      head.replaceChildren(button);
    });
  };

  const addFilter = table => {
    const rows = Array.from(table.tBodies[0].rows);
    if (rows.length < 2) return;
    const label = make('label', {class: 'filter'}, 'filter ');
    const input = make('input', {type: 'search', 'aria-controls': table.id});
    const count = make('span', {'aria-live': 'polite'});
    input.addEventListener('input', () => {
      const words = input.value.toLowerCase().split(/\s+/).filter(word => word);
      let shown = 0;
      for (const row of rows) {
        const text = row.textContent.toLowerCase();
        row.hidden = !words.every(word => text.includes(word));
        shown += row.hidden ? 0 : 1;
      }
      count.textContent = words.length ? `${shown} of ${rows.length} rows` : '';
    });
    label.append(input, count);
    table.parentElement.before(label);
  };

  // --- charts

  const addPointer = chart => {
    const table = document.getElementById(chart.id.replace('-chart', '-samples'));
    if (!table) return;
    const figure = chart.parentElement;
    const points = Array.from(table.tBodies[0].rows, row => ({
      time: Number(row.querySelector('data').value),
      texts: Array.from(row.cells, item => item.textContent),
    }));
    const from = Number(chart.dataset.left), to = Number(chart.dataset.right);
    const end = Number(chart.dataset.end);
    const line = document.createElementNS('http://www.w3.org/2000/svg', 'path');
    const tip = make('div', {class: 'tip', role: 'status'});
    line.setAttribute('class', 'cursor');
    tip.hidden = true;
    figure.append(tip);
    let at = points.length - 1;
    const show = index => {
      at = Math.max(0, Math.min(points.length - 1, index));
      const x = from + (to - from) * points[at].time / end;
      line.setAttribute('d', `M${x} ${chart.dataset.top}V${chart.dataset.bottom}`);
      chart.append(line);
      const [time, requested, deferred, backed] = points[at].texts;
      tip.textContent = `${time}\nrequested ${requested}\ndeferred ${deferred}\nbacked ${backed}`;
      tip.hidden = false;
      const place = x / chart.viewBox.baseVal.width * chart.clientWidth;
      const isLeft = place + tip.offsetWidth + 16 > chart.clientWidth;
      tip.style.left = `${isLeft ? place - tip.offsetWidth - 10 : place + 10}px`;
      tip.style.top = `${chart.getBoundingClientRect().top - figure.getBoundingClientRect().top + 16}px`;
    };
    const hide = () => { tip.hidden = true; line.remove(); };
    chart.addEventListener('pointermove', event => {
      const box = chart.getBoundingClientRect();
      const x = (event.clientX - box.left) / box.width * chart.viewBox.baseVal.width;
      const time = (x - from) / (to - from) * end;
      let low = 0, high = points.length;
      while (high - low > 1) {
        const middle = (low + high) >> 1;
        if (points[middle].time <= time) low = middle; else high = middle;
      }
      show(low);
    });
    chart.addEventListener('pointerleave', hide);
    chart.addEventListener('blur', hide);
    chart.addEventListener('focus', () => show(at));
    chart.addEventListener('keydown', event => {
      const moves = {ArrowLeft: at - 1, ArrowRight: at + 1, Home: 0, End: points.length - 1};
      if (event.key === 'Escape') hide();
      if (!(event.key in moves)) return;
      show(moves[event.key]);
      event.preventDefault();
    });
    chart.setAttribute('tabindex', '0');
  };

  // --- maps

  const tip = make('div', {class: 'tip', role: 'status'});
  tip.hidden = true;

  const showBlock = block => {
    const box = block.getBoundingClientRect();
    tip.textContent = block.getAttribute('aria-label');
    tip.hidden = false;
    const left = Math.min(box.left, document.documentElement.clientWidth - tip.offsetWidth - 8);
    const isAbove = box.bottom + tip.offsetHeight + 8 > window.innerHeight;
    tip.style.left = `${Math.max(4, left) + window.scrollX}px`;
    tip.style.top = `${(isAbove ? box.top - tip.offsetHeight - 5 : box.bottom + 5) + window.scrollY}px`;
  };

  const reveal = target => {
    for (let outer = target.parentElement; outer; outer = outer.parentElement)
      if (outer.tagName === 'DETAILS') outer.open = true;
  };

  const goTo = block => {
    const row = document.getElementById(block.dataset.block);
    if (!row) return;
    reveal(row);
    row.hidden = false;
    row.scrollIntoView({block: 'center'});
    row.focus({preventScroll: true});
  };

  // One stop for the Tab key; arrows go from block to block, Enter to its row in the table.
  const addMap = map => {
    const blocks = all('g[data-block]', map);
    blocks.forEach((block, index) => {
      const title = block.querySelector('title');
      block.setAttribute('aria-label', title.textContent);
      block.setAttribute('role', 'img');
      block.setAttribute('tabindex', index === 0 ? '0' : '-1');
      title.remove();
    });
    map.setAttribute('role', 'group');
    const blockOf = event => event.target.closest('g[data-block]');
    map.addEventListener('pointerover', event => {
      if (blockOf(event)) showBlock(blockOf(event)); else tip.hidden = true;
    });
    map.addEventListener('pointerleave', () => { tip.hidden = true; });
    map.addEventListener('focusin', event => { if (blockOf(event)) showBlock(blockOf(event)); });
    map.addEventListener('focusout', () => { tip.hidden = true; });
    map.addEventListener('click', event => { if (blockOf(event)) goTo(blockOf(event)); });
    map.addEventListener('keydown', event => {
      const at = blocks.indexOf(blockOf(event));
      const moves = {ArrowLeft: at - 1, ArrowRight: at + 1, Home: 0, End: blocks.length - 1};
      if (event.key === 'Escape') tip.hidden = true;
      if (event.key === 'Enter' && at >= 0) goTo(blocks[at]);
      const next = blocks[moves[event.key]];
      if (!next) return;
      blocks[at].setAttribute('tabindex', '-1');
      next.setAttribute('tabindex', '0');
      next.focus();
      event.preventDefault();
    });
  };

  const follow = () => {
    const target = document.getElementById(decodeURIComponent(location.hash.slice(1)));
    if (!target) return;
    reveal(target);
    target.scrollIntoView();
  };

  all('table.sortable').forEach(table => { addSorting(table); addFilter(table); });
  all('svg.chart').forEach(addPointer);
  all('.map').forEach(addMap);
  document.body.append(tip);
  window.addEventListener('hashchange', follow);
  follow();
})();
