// SPDX-License-Identifier: Apache-2.0
// Puts what draw.js draws into the page, and adds what it can do beyond being read: tables that sort and filter, charts and
// maps that zoom and have a pointer, and a way from a block to its events.
(() => {
  const all = (selector, within = document) => Array.from(within.querySelectorAll(selector));

  const drawn = drawPage(JSON.parse(document.getElementById('data').textContent));
  document.title = drawn.title;
  document.body.insertAdjacentHTML('afterbegin', drawn.body);

  // Texts of a state page are only ever set as text.
  const make = (name, attributes = {}, text = '') => {
    const element = document.createElement(name);
    for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
    element.textContent = text;
    return element;
  };

  // --- tables

  const keyOf = (row, column) => {
    const datum = row.cells[column].querySelector('data');
    const isNumber = row.cells[column].classList.contains('n');
    return isNumber ? Number(datum ? datum.value : -1) : row.cells[column].textContent;
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
    const input = make('input', {type: 'search', 'aria-controls': table.id, 'data-filter': table.id});
    const count = make('span', {'aria-live': 'polite'});
    const heads = Array.from(table.tHead.rows[0].cells, head => head.textContent.toLowerCase());
    // "block:4" is for the column of that name alone; other words are for the whole row.
    const has = (row, text, word) => {
      const column = heads.indexOf(word.split(':')[0]);
      return column >= 0 && word.includes(':')
        ? row.cells[column].textContent.toLowerCase() === word.slice(word.indexOf(':') + 1) : text.includes(word);
    };
    input.addEventListener('input', () => {
      const words = input.value.toLowerCase().split(/\s+/).filter(word => word);
      let shown = 0;
      for (const row of rows) {
        const text = row.textContent.toLowerCase();
        row.hidden = !words.every(word => has(row, text, word));
        shown += row.hidden ? 0 : 1;
      }
      count.textContent = words.length ? `${shown} of ${rows.length} rows` : '';
    });
    label.append(input, count);
    table.parentElement.before(label);
  };

  const reveal = target => {
    for (let outer = target.parentElement; outer; outer = outer.parentElement)
      if (outer.tagName === 'DETAILS') outer.open = true;
  };

  const goTo = row => {
    reveal(row);
    row.hidden = false;
    row.scrollIntoView({block: 'center'});
    row.focus({preventScroll: true});
  };

  // A link to a block's first event: its events alone.
  const showEvents = link => {
    const first = document.getElementById(link.hash.slice(1));
    const input = document.querySelector(`[data-filter="${first.closest('table').id}"]`);
    if (input) {
      input.value = `block:${link.dataset.block}`;
      input.dispatchEvent(new Event('input'));
    }
    goTo(first);
  };

  // --- zoom

  // Buttons for `act`: it is called with a factor, 0 for all.
  const makeTools = (what, hint, act) => {
    const tools = make('div', {class: 'tools', role: 'group', 'aria-label': `zoom of ${what}`});
    for (const [text, title, factor] of [['\u2212', 'zoom out', 0.5], ['+', 'zoom in', 2], ['all', 'show all', 0]]) {
      const button = make('button', {type: 'button', title}, text);
      button.addEventListener('click', () => act(factor));
      tools.append(button);
    }
    tools.append(make('span', {}, hint));
    return tools;
  };

  // --- charts

  const MOST_ZOOM = 64; // beyond that the digits of the lines are too few
  const svg = (name, attributes = {}) => {
    const element = document.createElementNS('http://www.w3.org/2000/svg', name);
    for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
    return element;
  };

  const timeText = ns => {
    const [unit, size] = ns >= 1e9 ? ['s', 1e9] : ns >= 1e6 ? ['ms', 1e6] : ['us', 1e3];
    return ns ? `${Number((ns / size).toPrecision(6))} ${unit}` : '0';
  };

  // A step of 1, 2 or 5 times a power of ten that gives at most nine lines.
  const roundTime = span => {
    for (let step = 1; ; step *= 10)
      for (const factor of [1, 2, 5]) if (span / (step * factor) < 9) return step * factor;
  };

  // The part of the time that a chart shows.
  const makeWindow = chart => {
    const number = Object.fromEntries(Object.entries(chart.dataset).map(([key, value]) => [key, Number(value)]));
    const {left, right, bottom, end} = number;
    const plot = chart.querySelector('.plot'), times = chart.querySelector('.times');
    const loaded = chart.querySelector('text.loaded');
    const [, top, , height] = plot.getAttribute('viewBox').split(' ');
    let begin = 0, span = end;
    const xOf = time => left + (right - left) * (time - begin) / span;
    const draw = () => {
      plot.setAttribute('viewBox', `${left + (right - left) * begin / end} ${top} ${(right - left) * span / end} ${height}`);
      const step = roundTime(span);
      times.replaceChildren();
      const isLoadedShown = loaded && loaded.dataset.time >= begin && loaded.dataset.time <= begin + span;
      if (loaded) loaded.setAttribute('visibility', isLoadedShown ? 'visible' : 'hidden');
      if (isLoadedShown) loaded.setAttribute('x', xOf(loaded.dataset.time));
      for (let at = Math.ceil(begin / step) * step; at <= begin + span; at += step) {
        const label = svg('text', {x: xOf(at), y: bottom + 19, 'text-anchor': 'middle'});
        label.textContent = timeText(at);
        times.append(svg('path', {class: 'axis', d: `M${xOf(at)} ${bottom}v5`}), label);
      }
    };
    draw();
    return {
      number, xOf,
      timeOf: x => begin + (Math.min(right, Math.max(left, x)) - left) / (right - left) * span,
      set(from, length) {
        span = Math.min(end, Math.max(end / MOST_ZOOM, length));
        begin = Math.min(end - span, Math.max(0, from));
        draw();
      },
      zoom(factor, at) {
        if (factor) this.set(at - (at - begin) / factor, span / factor); else this.set(0, end);
      },
      follow(time) { if (time < begin || time > begin + span) this.set(time - span / 2, span); },
      middle: () => begin + span / 2,
    };
  };

  // Dragging over a part of the chart shows that part. Fingers scroll instead, and have the buttons.
  const addDragging = (chart, part, xAt) => {
    const mark = svg('rect', {class: 'mark', y: part.number.top, height: part.number.bottom - part.number.top});
    let from = null;
    chart.addEventListener('pointerdown', event => {
      if (event.pointerType === 'touch' || event.button !== 0) return;
      from = xAt(event);
      chart.setPointerCapture(event.pointerId);
    });
    chart.addEventListener('pointermove', event => {
      if (from === null) return;
      mark.setAttribute('x', Math.min(from, xAt(event)));
      mark.setAttribute('width', Math.abs(from - xAt(event)));
      chart.append(mark);
    });
    chart.addEventListener('pointerup', event => {
      if (from === null) return;
      const times = [part.timeOf(from), part.timeOf(xAt(event))].sort((a, b) => a - b);
      if (Math.abs(from - xAt(event)) > 6) part.set(times[0], times[1] - times[0]);
      mark.remove();
      from = null;
    });
    chart.addEventListener('pointercancel', () => { mark.remove(); from = null; });
    chart.addEventListener('dblclick', () => part.zoom(0));
  };

  const addPointer = chart => {
    const table = document.getElementById(chart.id.replace('-chart', '-samples'));
    if (!table) return;
    const frame = chart.parentElement;
    const points = Array.from(table.tBodies[0].rows, row => ({
      time: Number(row.querySelector('data').value),
      texts: Array.from(row.cells, item => item.textContent),
    }));
    const part = makeWindow(chart);
    const line = svg('path', {class: 'cursor'});
    const tip = make('div', {class: 'tip', role: 'status'});
    tip.hidden = true;
    frame.append(tip);
    const xAt = event => {
      const box = chart.getBoundingClientRect();
      return (event.clientX - box.left) / box.width * chart.viewBox.baseVal.width;
    };
    let at = points.length - 1;
    const show = index => {
      at = Math.max(0, Math.min(points.length - 1, index));
      const x = Math.max(part.number.left, part.xOf(points[at].time));
      line.setAttribute('d', `M${x} ${chart.dataset.top}V${chart.dataset.bottom}`);
      chart.append(line);
      const [time, without, deferred, backed] = points[at].texts;
      tip.textContent = `${time}\nwithout MetaShard ${without}\ndeferred ${deferred}\nbacked ${backed}`;
      tip.hidden = false;
      const place = x / chart.viewBox.baseVal.width * chart.clientWidth;
      const isLeft = place + tip.offsetWidth + 16 > chart.clientWidth;
      tip.style.left = `${isLeft ? place - tip.offsetWidth - 10 : place + 10}px`;
      tip.style.top = '16px';
    };
    const hide = () => { tip.hidden = true; line.remove(); };
    const zoom = (factor, time) => { hide(); part.zoom(factor, time); };
    addDragging(chart, part, xAt);
    frame.before(makeTools('the memory over time', 'or drag over a part of it', factor => zoom(factor, part.middle())));
    chart.addEventListener('pointermove', event => {
      const time = part.timeOf(xAt(event));
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
      const zooms = {'+': 2, '-': 0.5, '0': 0};
      if (event.key === 'Escape') hide();
      if (event.key in zooms) zoom(zooms[event.key], points[at].time);
      if (!(event.key in moves) && !(event.key in zooms)) return;
      const next = Math.max(0, Math.min(points.length - 1, event.key in moves ? moves[event.key] : at));
      part.follow(points[next].time);
      show(next);
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

  const goToEvents = block => {
    const row = document.getElementById(block.dataset.block);
    if (!row) return;
    const link = row.querySelector('a[data-block]');
    if (link) showEvents(link); else goTo(row);
  };

  // One stop for the Tab key; arrows go from block to block, Enter to its events, or to
  // its row if there are none.
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
    let factor = 1;
    const zoom = by => {
      factor = by ? Math.min(MOST_ZOOM, Math.max(1, factor * by)) : 1;
      tip.hidden = true;
      for (const row of all('.row', map)) row.style.width = factor > 1 ? `${100 * factor}%` : '';
      if (blocks.includes(document.activeElement)) document.activeElement.scrollIntoView({block: 'nearest', inline: 'center'});
    };
    map.before(makeTools('the blocks', 'click a block for its events', zoom));
    const blockOf = event => event.target.closest('g[data-block]');
    map.addEventListener('pointerover', event => {
      if (blockOf(event)) showBlock(blockOf(event)); else tip.hidden = true;
    });
    map.addEventListener('pointerleave', () => { tip.hidden = true; });
    map.addEventListener('focusin', event => { if (blockOf(event)) showBlock(blockOf(event)); });
    map.addEventListener('focusout', () => { tip.hidden = true; });
    map.addEventListener('click', event => { if (blockOf(event)) goToEvents(blockOf(event)); });
    map.addEventListener('keydown', event => {
      const at = blocks.indexOf(blockOf(event));
      const moves = {ArrowLeft: at - 1, ArrowRight: at + 1, Home: 0, End: blocks.length - 1};
      const zooms = {'+': 2, '-': 0.5, '0': 0};
      if (event.key === 'Escape') tip.hidden = true;
      if (event.key === 'Enter' && at >= 0) goToEvents(blocks[at]);
      if (event.key in zooms) zoom(zooms[event.key]);
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
  all('a[data-block]').forEach(link => link.addEventListener('click', event => {
    showEvents(link);
    event.preventDefault();
  }));
  document.body.append(tip);
  window.addEventListener('hashchange', follow);
  follow();
})();
