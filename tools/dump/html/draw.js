// SPDX-License-Identifier: Apache-2.0
// The page as text, made of the data of metashard-dump show --json. It needs no document: page.js puts the text into one,
// and a test reads it without a browser.
'use strict';
const drawPage = (() => {
  // --- texts

  // A template escapes the values between its own text, which anybody may have written, unless a value is a template itself.
  class Markup { constructor(text) { this.text = text; } }
  const ESCAPES = {'&': '&amp;', '<': '&lt;', '>': '&gt;', '"': '&quot;', "'": '&#39;'};
  const escaped = value => Array.isArray(value) ? value.map(escaped).join('')
    : value instanceof Markup ? value.text : String(value ?? '').replace(/[&<>"']/g, letter => ESCAPES[letter]);
  const html = (parts, ...values) => new Markup(String.raw({raw: parts}, ...values.map(escaped)));

  const BYTES = ['B', 'KiB', 'MiB', 'GiB', 'TiB', 'PiB', 'EiB'].map((name, i) => ({name, size: 1024 ** i, digits: i ? 1 : 0}));
  const TIMES = [{name: 'us', size: 1e3, digits: 1}, {name: 'ms', size: 1e6, digits: 1}, {name: 's', size: 1e9, digits: 3}];
  const unitFor = (units, most) => units.findLast(unit => most >= unit.size) ?? units[0];

  // Enough digits that a small value is not shown as 0.
  const inUnit = (value, unit) => {
    if (!value) return '0';
    let digits = unit.digits;
    while (digits < 9 && digits > 0 && Number((value / unit.size).toFixed(digits)) === 0) digits++;
    return `${(value / unit.size).toFixed(digits)} ${unit.name}`;
  };
  const bytesText = value => inUnit(value, unitFor(BYTES, value));
  // Figures that are compared share the unit of the least, unless others were long in it.
  const unitOfAll = values => {
    const most = Math.max(...values), unit = unitFor(BYTES, Math.min(...values.filter(value => value > 0)));
    return most < 10000 * unit.size ? unit : unitFor(BYTES, most);
  };
  const timeText = value => inUnit(value, unitFor(TIMES, value));

  // The number for programs is in <data>; `figure` is its name in the JSON.
  const datum = (value, text, figure) => figure
    ? html`<data data-figure="${figure}" value="${value}">${text}</data>` : html`<data value="${value}">${text}</data>`;
  const figureOf = (value, figure) => datum(value, (figure.endsWith('_ns') ? timeText : bytesText)(value), figure);

  // --- tables

  // A column: its name, its kind, and what a row has there. All numbers of bytes of a table are in one unit, and all times.
  const NUMBERS = ['bytes', 'time', 'count', 'seconds'];
  const unitsOf = (columns, rows) => {
    const most = kind => columns.filter(column => column[1] === kind)
      .reduce((sum, [, , of]) => rows.reduce((other, row) => Math.max(other, of(row) ?? 0), sum), 0);
    return {bytes: unitFor(BYTES, most('bytes')), time: unitFor(TIMES, most('time'))};
  };

  const cell = ([, kind, of, bar], row, units) => {
    const value = of(row, units);
    if (kind === 'word') return html`<td>${value}</td>`;
    if (kind === 'text') return html`<td class="t">${value}</td>`;
    if (value === undefined || value instanceof Markup) return html`<td class="n">${value}</td>`;
    const text = kind === 'count' ? value : kind === 'seconds' ? (value / 1e9).toFixed(6) : inUnit(value, units[kind]);
    return html`<td class="n${bar ? ' bar' : ''}">${bar ? bar(row) : ''}${datum(value, text)}</td>`;
  };

  // `attributes` of a row. Narrow screens scroll, and say so.
  const makeTable = (id, label, columns, rows, {kind = 'sortable', attributes = () => ''} = {}) => {
    const units = unitsOf(columns, rows);
    return html`<p class="hint">← scroll sideways →</p>
<div class="scroll" tabindex="0" role="region" aria-label="${label}"><table id="${id}" class="${kind}"><thead><tr>${
      columns.map(([name, what]) => html`<th scope="col"${NUMBERS.includes(what) ? html` class="n"` : ''}>${name}</th>`)
    }</tr></thead><tbody>
${rows.map(row => html`<tr${attributes(row)}>${columns.map(column => cell(column, row, units))}</tr>
`)}</tbody></table></div>
`;
  };

  // A part of the page: of one process, or of all.
  const heading = (part, text) => part.isInner ? html`<h3>${text}</h3>
` : html`<h2>${text}</h2>
`;
  // `rows`: those of the data that are to be shown; `before` stands between heading and table.
  const section = (part, what, title, columns, {attributes, before = '', rows = part.data[what] ?? []} = {}) => {
    const left = part.data.left_out?.[what] ?? 0;
    return html`${heading(part, title)}${before}${rows.length
      ? makeTable(`${part.id}-${what}`, title, columns, rows, {attributes}) : html`<p>There are none.</p>
`}${left ? html`<p class="dim">${rows.length} of ${rows.length + left} are shown; metashard-dump show --json has all.</p>
` : ''}`;
  };

  const bar = (value, behind, most) => html`<svg viewBox="0 0 100 4" preserveAspectRatio="none" aria-hidden="true"><rect
 class="behind" width="${(100 * behind / (most || 1)).toFixed(1)}" height="4"/><rect width="${
    (100 * value / (most || 1)).toFixed(1)}" height="4"/></svg>`;

  const pairs = (id, title, rows, of) => html`<details class="table"><summary>${title}</summary><table id="${id}"
 class="pairs"><tbody>
${rows.map(([key, value]) => html`<tr><th scope="row">${key}</th>${of(key, value)}</tr>
`)}</tbody></table></details>
`;

  // --- summary

  // A sum over several processes says little: each has a device of its own, and all wait at once. So the figure is that of the
  // process that has the most of it, or saved the least.
  const TOTALS = {
    requested_bytes: ['requested', 'by all allocations together, freed ones too'],
    live_bytes_peak: ['without MetaShard', 'its peak'],
    live_bytes: ['now', 'requested, and not freed'],
    deferred_bytes: ['deferred', 'now: not in device memory'],
    backed_bytes: ['backed', 'now: in device memory'],
    backed_bytes_peak: ['with MetaShard', 'the peak of device memory'],
    saved_bytes: ['saved', 'peak without MetaShard less the peak with it'],
    skipped_bytes: ['skipped', 'written, and never copied to the device'],
    h2d_bytes: ['copied', 'to the device, by MetaShard'],
    materialise_ns: ['time', 'spent on loading bytes into memory'],
  };
  // Both peaks are bars above the cards.
  const FIRST = ['saved_bytes', 'skipped_bytes', 'h2d_bytes', 'materialise_ns'];
  const OTHERS = ['live_bytes', 'deferred_bytes', 'backed_bytes', 'requested_bytes'];
  const OF_EACH = ['backed_bytes_peak', 'live_bytes_peak', 'saved_bytes', 'backed_bytes', 'deferred_bytes', 'skipped_bytes',
    'h2d_bytes', 'materialise_ns'];

  const rankName = process => process.rank === null ? `process ${process.pid}` : `rank ${process.rank}`;
  const processName = process => `process ${process.pid}` + (process.rank === null ? '' : `, rank ${process.rank}`) +
    (process.rank === null || process.world_size === null ? '' : ` of ${process.world_size}`);
  const worst = (part, figure) => part.processes.reduce((found, process) =>
    (figure === 'saved_bytes' ? process[figure] < found[figure] : process[figure] > found[figure]) ? process : found);

  const card = (part, figure) => {
    const [term, meaning] = TOTALS[figure], process = worst(part, figure);
    return html`<div><dt>${term}</dt><dd>${figureOf(process[figure], figure)}<span>${meaning}${
      part.isAll ? `: ${rankName(process)}, the ${figure === 'saved_bytes' ? 'smallest' : 'highest'} of all` : ''}</span></dd></div>
`;
  };

  // A bar that is longer than the scale ends in dashes.
  const peak = (figure, kind, bytes, most, unit) => {
    const name = TOTALS[figure]?.[0] ?? 'device memory';
    const rects = bytes > most ? [[0, 91], [92, 2], [95, 2], [98, 2]] : [[0, 100 * bytes / most]];
    return html`<tr><th scope="row">${name}</th><td><svg viewBox="0 0 100 4" preserveAspectRatio="none" aria-hidden="true">${
      rects.map(([x, width]) => html`<rect class="${kind}" x="${x}" width="${width.toFixed(2)}" height="4"/>`)
    }</svg></td><td class="n">${datum(bytes, inUnit(bytes, unit), figure)}${bytes > most ? ', not to scale' : ''}</td></tr>
`;
  };

  // Several processes have no bar of devices: they may share a device.
  const peaks = (part, without, peakBytes) => {
    const device = part.isAll ? 0 : part.data.device_bytes;
    let most = Math.max(without, peakBytes, 1);
    if (device > most && Math.floor(device / 4) <= most) most = device;
    const unit = unitOfAll([without, peakBytes, device]);
    return html`<table class="peaks" id="${part.id}-peaks"><tbody>
${peak('live_bytes_peak', 'without', without, most, unit)}${peak('backed_bytes_peak', 'with', peakBytes, most, unit)}${
      device ? peak('device_bytes', 'device', device, most, unit) : ''}</tbody></table>
`;
  };

  // Four figures are enough at first sight; the others are one click away.
  const figures = part => {
    const full = worst(part, 'backed_bytes_peak'), without = full.live_bytes_peak;
    const percent = Math.round(100 * (full.backed_bytes_peak - without) / without);
    const unit = unitOfAll([without, full.backed_bytes_peak]);
    return html`${without ? html`<p class="verdict">Peak ${part.isAll ? `of ${rankName(full)}, the worst process, ` : ''}<b>${
      inUnit(full.backed_bytes_peak, unit)}</b> instead of <b>${inUnit(without, unit)}</b> (${percent > 0 ? '+' : ''}${percent} %)</p>
` : ''}${peaks(part, without, full.backed_bytes_peak)}<dl class="figures">
${FIRST.map(figure => card(part, figure))}</dl>
<details class="table"><summary>More figures</summary>
<dl class="figures">
${OTHERS.map(figure => card(part, figure))}</dl></details>
`;
  };

  const NO_RULE = 'a kernel without a rule';
  const isBypassed = cause => cause.reason === 'another library stands before MetaShard';

  const planOf = plan => plan && html`<p>Plan ${plan.file}: rank ${plan.rank ?? '?'} of ${plan.world_size ?? '?'} keeps ${
    datum(plan.owned_bytes, bytesText(plan.owned_bytes))} of ${datum(plan.planned_bytes, bytesText(plan.planned_bytes))}, ${
    plan.mode === 'enforce' ? 'enforced' : 'as advice'}.</p>
`;

  // An alarm is for what a user can change. After a program has loaded, its kernels use memory; and less than a granule is not
  // worth a look.
  const GRANULE = 2 ** 21;
  // The kernel that ends loading computes: it counts as loading, but is none.
  const ending = process => process.plan ? undefined : process.causes.filter(cause => cause.kind === 'fallback' &&
    cause.reason === NO_RULE && cause.first_ns <= process.loaded_ns).sort((a, b) => b.first_ns - a.first_ns)
    .slice(0, 1).find(cause => cause.loaded_count === 1);
  const fallbacks = process => {
    const last = ending(process);
    return process.causes.reduce((sum, cause) => sum + (cause.kind === 'fallback' && cause.loaded_bytes >= GRANULE && cause !== last
      ? cause.loaded_count : 0), 0);
  };
  const note = text => html`<p class="note">${text}</p>
`;
  const notes = part => [
    ...new Set(part.data.causes.filter(isBypassed).map(cause => cause.explanation)),
    ...[
      [fallbacks, 'times while it loaded, memory could not stay deferred: see the causes.'],
      [process => process.remote_reads, 'reads of bytes that the plan gives to other ranks: see the causes.'],
      [process => process.torn_records, 'records were half written when a process was killed; they are left out.'],
    ].map(([countOf, text]) => [part.processes.reduce((sum, process) => sum + countOf(process), 0), text])
      .filter(([count]) => count).map(pair => pair.join(' ')),
  ].map(note);

  // One line a device. A fact that does not hold is as loud as a note.
  const selfChecks = process => process.self_checks.map((check, device) => {
    const isBad = check.unmet.length > 0;
    const outcome = check.steps_aside ? ', and nothing is deferred there' : isBad ? ', and some facts do not hold'
      : ['run', 'kept'].includes(check.state) ? ', all facts hold' : '';
    return check.state === 'none' ? '' : html`<p class="self-check ${isBad ? 'note' : 'dim'}">Self-check of device ${device}: ${
      check.state}${outcome}${isBad ? `: ${check.unmet.join('; ')}` : '.'}</p>
`;
  });

  const LIVES = {running: 'running for', ended: 'ended after', killed: 'killed, last change after',
    unknown: 'perhaps running, last seen after'};
  const life = process => html`<span class="life ${process.state}">${LIVES[process.state]} ${
    datum(process.time_ns, timeText(process.time_ns))}</span>`;

  const where = process => html`<p class="command"><code>${process.command}</code></p>
<p class="dim">in ${process.folder} on ${process.host}${process.job === null ? '' : `, job ${process.job}`}, MetaShard ${
    process.version}</p>
`;

  // Numbers of a process that are no counters, or that the page shows already.
  const FACTS = ['pid', 'rank', 'world_size', 'started_unix_ns', 'time_ns', 'torn_records', 'events_lost', 'saved_bytes',
    'device_bytes', ...Object.keys(TOTALS)];
  const particulars = part => html`${
    pairs(`${part.id}-counters`, 'Other counters', Object.entries(part.data).filter(([key, value]) =>
      typeof value === 'number' && !FACTS.includes(key)),
    (key, value) => html`<td class="n">${datum(value, value, key)}</td>`)}${
    pairs(`${part.id}-options`, 'Configuration', Object.entries(part.data.options), (key, value) => html`<td>${value}</td>`)}`;

  // --- memory over time: steps. The lines are in an SVG of their own within the chart: page.js zooms by its viewBox.

  const WIDTH = 960, HEIGHT = 300, LEFT = 78, RIGHT = 26, TOP = 12, BOTTOM = 34;
  const MARGIN = 2; // lines at the edges are not cut in half
  const SERIES = [['without MetaShard', 'allocated and not freed', 'live_bytes', 'requested'],
    ['deferred', 'not in device memory', 'deferred_bytes', 'deferred'],
    ['backed', 'in device memory', 'backed_bytes', 'backed']];

  const legend = (entries, key) => html`<ul class="legend">${entries.map(([name, meaning, , mark = name]) => html`<li><svg
 class="key" viewBox="0 0 24 8" aria-hidden="true">${key(mark)}</svg><b>${name}</b> ${meaning}</li>`)}</ul>
`;

  const scaleOf = samples => {
    const end = samples.at(-1).time_ns || 1;
    const bytes = samples.reduce((most, sample) => SERIES.reduce((other, [, , key]) => Math.max(other, sample[key]), most), 1);
    let step = 1;
    while (bytes / step >= 6) step *= 2;
    const most = Math.ceil(bytes / step) * step;
    return {
      end, most, step, x: time => LEFT + time * (WIDTH - LEFT - RIGHT) / end,
      y: value => HEIGHT - BOTTOM - value * (HEIGHT - TOP - BOTTOM) / most,
    };
  };

  const grid = scale => {
    const lines = [];
    for (let bytes = 0; bytes <= scale.most; bytes += scale.step) {
      const y = scale.y(bytes).toFixed(1);
      lines.push(html`<path class="${bytes ? 'grid' : 'axis'}" d="M${LEFT} ${y}H${WIDTH - RIGHT}"/><text x="${LEFT - 8}" y="${
        Number(y) + 4}" text-anchor="end">${inUnit(bytes, unitFor(BYTES, scale.step))}</text>
`);
    }
    return lines;
  };

  // A step where the value changes, and the end.
  const steps = (scale, samples, key) => {
    let path = `M${scale.x(samples[0].time_ns).toFixed(2)} ${scale.y(samples[0][key]).toFixed(2)}`;
    samples.slice(1).forEach((sample, i) => {
      const isStep = sample[key] !== samples[i][key];
      if (isStep || i + 2 === samples.length) path += `H${scale.x(sample.time_ns).toFixed(2)}`;
      if (isStep) path += `V${scale.y(sample[key]).toFixed(2)}`;
    });
    return path;
  };

  // Where the program had loaded and went on to its work: the line is in the plot, which zooms, its label is not.
  const loadedMark = (scale, loaded) => ({
    line: html`<path class="loaded" d="M${scale.x(loaded).toFixed(2)} ${TOP}V${HEIGHT - BOTTOM}"/>
`,
    label: html`<text class="loaded" data-time="${loaded}" x="${scale.x(loaded).toFixed(2)}" y="${TOP + 10}" text-anchor="${
      loaded > scale.end / 2 ? 'end' : 'start'}" dx="${loaded > scale.end / 2 ? -5 : 5}">loading ends: ${timeText(loaded)}</text>
`,
  });

  const plot = (part, samples, loaded) => {
    const scale = scaleOf(samples), width = WIDTH - LEFT - RIGHT, height = HEIGHT - TOP - BOTTOM + 2 * MARGIN;
    const area = `${steps(scale, samples, 'backed_bytes')}V${scale.y(0).toFixed(2)}H${scale.x(samples[0].time_ns).toFixed(2)}Z`;
    // The first series is on top, dashed, so that an equal one shows through.
    const lines = [...SERIES].reverse().map(([, , key, mark]) =>
      html`<path class="line ${mark}" data-series="${mark}" d="${steps(scale, samples, key)}"/>
`);
    const mark = loaded > 0 && loaded <= scale.end ? loadedMark(scale, loaded) : {line: '', label: ''};
    return html`<svg class="chart" id="${part.id}-chart" viewBox="0 0 ${WIDTH} ${HEIGHT}" role="img" aria-labelledby="${
      part.id}-chart-title" data-begin="0" data-end="${scale.end}" data-most="${scale.most}" data-left="${LEFT}" data-right="${
      WIDTH - RIGHT}" data-top="${TOP}" data-bottom="${HEIGHT - BOTTOM}">
<title id="${part.id}-chart-title">Bytes without MetaShard, deferred and backed over ${timeText(scale.end)}${
      mark.line && `; loading ends after ${timeText(loaded)}`}</title>
${grid(scale)}<g class="times"></g>
<svg class="plot" x="${LEFT}" y="${TOP - MARGIN}" width="${width}" height="${height}" viewBox="${LEFT} ${TOP - MARGIN} ${
      width} ${height}" preserveAspectRatio="none">
<path class="area backed" d="${area}"/>
${lines}${mark.line}</svg>
${mark.label}</svg>
`;
  };

  const chart = part => {
    // A sum over several processes would add up several devices, so the chart shows the worst process.
    const full = worst(part, 'backed_bytes_peak'), samples = part.data.samples;
    if (!samples.length) return html`${heading(part, 'Memory over time')}<p>Nothing was allocated.</p>
`;
    const columns = [['time', 'time', sample => sample.time_ns],
      ...SERIES.map(([name, , key]) => [name, 'bytes', sample => sample[key]])];
    return html`${heading(part, 'Memory over time')}<figure>
${legend(SERIES, name => html`<path class="line ${name}" d="M0 4H24"/>`)}<p class="hint">← scroll sideways →</p>
<div class="wide">
${plot(part, samples, full.loaded_ns)}</div>
${part.isAll ? html`<figcaption>Of ${rankName(full)}, which has the highest peak.</figcaption>
` : ''}</figure>
<details class="table"><summary>The ${samples.length} points as a table</summary>
${makeTable(`${part.id}-samples`, 'Memory over time', columns, samples, {kind: 'points'})}</details>
`;
  };

  // --- map of the address space: blocks by address, wrapped into rows. A block is as wide as its bytes, but always wide enough
  // to be visible; gaps between blocks are left out. The height of each colour in a block is its share of the bytes: the data
  // has only the sums.

  const ROW_WIDTH = 1000, ROW_HEIGHT = 24, MOST_ROWS = 10, GAP = 2, LEAST_WIDTH = 3;
  const STATES = [['resident', 'in device memory'], ['cached', 'in device memory, and can be evicted'],
    ['deferred', 'not in device memory'], ['remote', 'not in device memory: other ranks keep it'],
    ['dead', 'never written, or not read again']]; // from bottom to top

  const sharesOf = block => {
    let left = block.bytes;
    const take = bytes => { const taken = Math.min(bytes, left); left -= taken; return taken; };
    const resident = take(block.lineage_bytes.resident ?? 0), cached = take(block.cached_bytes);
    const deferred = take(block.deferred_bytes), remote = Math.min(block.remote_bytes, deferred);
    return {resident, cached, deferred: deferred - remote, remote, dead: left};
  };

  const describe = block => [
    ...block.name ? [block.name] : [],
    `block ${block.id}${block.kind === 'part' ? ' (part)' : ''} at ${block.address}, ${bytesText(block.bytes)}: ${block.state}`,
    ...Object.entries(block.lineage_bytes).map(([kind, bytes]) => `${kind} ${bytesText(bytes)}`),
    ...block.remote_bytes ? [`kept by other ranks ${bytesText(block.remote_bytes)}`] : [],
  ].join('\n');

  // The piece of the block that fits in a row.
  const piece = (part, block, number, x, width) => {
    let bottom = ROW_HEIGHT;
    const shares = sharesOf(block);
    return html`<g data-block="${part.id}-b${number}" data-state="${block.state}" data-name="${block.name}"><title>${
      describe(block)}</title>${STATES.filter(([state]) => shares[state] > 0).map(([state]) => {
      const height = shares[state] * ROW_HEIGHT / block.bytes;
      bottom -= height;
      return html`<rect class="${state}" x="${x.toFixed(2)}" y="${bottom.toFixed(2)}" width="${width.toFixed(2)}" height="${
        height.toFixed(2)}"/>`;
    })}</g>
`;
  };

  const rowsOf = (part, spots, widthOf) => {
    const rows = [];
    let at = ROW_WIDTH;
    for (const [block, number] of spots) {
      const whole = widthOf(block);
      for (let width = whole; width > 0;) {
        if (at > ROW_WIDTH - LEAST_WIDTH) {
          const address = BigInt(block.address) + BigInt(Math.floor(block.bytes * (1 - width / whole)));
          rows.push({address: BigInt.asUintN(64, address) & ~0xfffn, pieces: []});
          at = 0;
        }
        const fits = Math.min(width, ROW_WIDTH - at);
        rows.at(-1).pieces.push(piece(part, block, number, at, fits));
        at += fits + GAP;
        width -= fits;
      }
    }
    return rows.map(row => html`<div class="row"><code>0x${row.address.toString(16)}</code><svg viewBox="0 0 ${ROW_WIDTH} ${
      ROW_HEIGHT}" preserveAspectRatio="none">
${row.pieces}</svg></div>
`);
  };

  const mapOf = (part, device, spots) => {
    const bytes = spots.reduce((sum, [block]) => sum + block.bytes, 0);
    const rows = Math.min(MOST_ROWS, 1 + Math.floor(spots.length / 12)); // few blocks need few rows
    const room = Math.max(ROW_WIDTH / 4, rows * ROW_WIDTH - spots.length * GAP);
    return html`<p class="caption">device ${device} (${part.data.devices[device]}): ${spots.length} blocks, ${
      bytesText(bytes)}</p>
<div class="map" role="img" aria-label="${spots.length} blocks by address; the table of blocks has the same data">
${rowsOf(part, spots, block => Math.max(LEAST_WIDTH, block.bytes * room / bytes))}</div>
`;
  };

  // A carved allocation is shown by its parts, or by itself if it has none here.
  const map = part => {
    const blocks = part.data.blocks, devices = new Map();
    blocks.forEach((block, i) => {
      if (block.bytes > 0 && !(block.kind === 'carved' && blocks[i + 1]?.id === block.id))
        devices.set(block.device, devices.get(block.device) ?? []).get(block.device).push([block, i]);
    });
    const maps = Array.from(devices).sort((a, b) => a[0] - b[0]).map(([device, spots]) =>
      mapOf(part, device, spots.sort(([a], [b]) => Number(a.address) - Number(b.address) || a.id - b.id)));
    return html`${heading(part, 'Address space')}<p class="dim">Blocks by address, each as wide as its bytes; gaps between them
 are left out. The height of a colour is its share of the block's bytes.</p>
${legend(STATES, name => html`<rect class="${name}" width="24" height="8"/>`)}<p class="hint">← scroll sideways →</p>
${maps.length ? maps : html`<p>There are no blocks.</p>
`}`;
  };

  // --- sections that are tables

  const processes = part => {
    const most = part.processes.reduce((sum, process) => Math.max(sum, process.live_bytes_peak, process.backed_bytes_peak), 1);
    const columns = [
      ['process', 'word', process => html`<a href="#p${part.processes.indexOf(process)}">${processName(process)}</a>`],
      ['state', 'word', life],
      ...OF_EACH.map((figure, i) => [TOTALS[figure][0], figure.endsWith('_ns') ? 'time' : 'bytes', process => process[figure],
        i === 0 && (process => bar(process.backed_bytes_peak, process.live_bytes_peak, most))])];
    return makeTable(`${part.id}-processes`, 'Processes', columns, part.processes,
      {attributes: process => html` data-pid="${process.pid}"`});
  };

  // By the program's work, after it had loaded.
  const used = cause => cause.kind === 'fallback' && cause.loaded_count === 0 && cause.reason === NO_RULE ? 'used' : cause.kind;

  // Why bytes have memory, each once: not what was replayed or materialised for another row, nor what was evicted again, nor
  // memory of the host. A library before MetaShard is a note.
  const givenOnce = causes => {
    const reasons = new Set(causes.filter(cause => cause.explanation).map(cause => cause.reason));
    return causes.filter(cause => !isBypassed(cause) && !['replay', 'evict'].includes(cause.kind) &&
      !(cause.kind === 'pin' && cause.text.startsWith('host memory')) &&
      !(cause.kind === 'materialise' && reasons.has(cause.reason)));
  };

  const causes = part => {
    const rows = givenOnce(part.data.causes), most = rows[0]?.bytes;
    const firsts = new Map();
    for (const cause of rows) if (cause.explanation && !firsts.has(cause.reason)) firsts.set(cause.reason, cause);
    return section(part, 'causes', 'Causes by bytes', [
      ['bytes', 'bytes', cause => cause.bytes, cause => bar(cause.bytes, 0, most)], ['times', 'count', cause => cause.count],
      [part.isAll ? 'longest time' : 'time', 'time', cause => cause.duration_ns], ['kind', 'word', used],
      ['call', 'word', cause => cause.call], ['kernel or tensor', 'text', cause => cause.text],
      ['why', 'text', cause => html`${cause.reason}${
        firsts.get(cause.reason) === cause ? html`<p class="advice">${cause.explanation}</p>` : ''}`]], {rows});
  };

  // --- tensors: a tree of the parts of their names, and a table

  // A level has the sums of what is below it. A name may be the beginning of another one.
  const addTo = (level, tensor) => {
    level.count++;
    for (const key of ['bytes', 'present_bytes', 'deferred_bytes']) level[key] += tensor[key];
  };
  const newLevel = name => ({name, count: 0, bytes: 0, present_bytes: 0, deferred_bytes: 0, below: new Map(), own: []});
  const treeOf = rows => {
    const root = newLevel('');
    for (const tensor of rows) {
      const words = tensor.name.split('.'), last = words.pop();
      let level = root;
      addTo(level, tensor);
      for (const word of words) {
        if (!level.below.has(word)) level.below.set(word, newLevel(word));
        level = level.below.get(word);
        addTo(level, tensor);
      }
      level.own.push([last, tensor]);
    }
    return root;
  };

  // One level below and nothing else: one line for both.
  const joined = level => {
    if (level.own.length || level.below.size !== 1) return level;
    const [only] = level.below.values();
    return joined({...only, name: `${level.name}.${only.name}`});
  };

  const sumsOf = level => html`<span>${datum(level.bytes, bytesText(level.bytes))}, in memory ${
    datum(level.present_bytes, bytesText(level.present_bytes))}, deferred ${
    datum(level.deferred_bytes, bytesText(level.deferred_bytes))}</span>`;
  const byWord = ([a], [b]) => a.localeCompare(b, 'en', {numeric: true});
  const leaves = rows => rows.length ? html`<ul>
${rows.sort(byWord).map(([word, tensor]) => html`<li data-name="${tensor.name}">${word} ${sumsOf(tensor)}</li>
`)}</ul>
` : '';
  // A level of one tensor is its line.
  const below = level => {
    const levels = Array.from(level.below.values(), joined), single = levels.filter(one => one.count === 1);
    return html`${leaves([...level.own, ...single.map(({name, own: [[last, tensor]]}) => [`${name}.${last}`, tensor])])}${
      levels.filter(one => one.count > 1).sort((a, b) => byWord([a.name], [b.name])).map(levelOf)}`;
  };
  const levelOf = level => html`<details class="level"><summary><b>${level.name}</b> ${sumsOf(level)} <i>${
    level.count} tensors</i></summary>
${below(level)}</details>
`;
  const tree = part => {
    const rows = part.data.tensors ?? [], root = treeOf(rows);
    return rows.length < 2 ? '' : html`<div class="tree" id="${part.id}-tree"><p class="caption">${root.count} tensors: ${
      sumsOf(root)}. Open a level for what is below it.</p>
${below(root)}</div>
`;
  };

  const tensors = part => section(part, 'tensors', part.isAll ? 'Tensors by name: the most of one process' : 'Tensors by name', [
    ['name', 'text', tensor => tensor.name], ['bytes', 'bytes', tensor => tensor.bytes],
    ['deferred', 'bytes', tensor => tensor.deferred_bytes], ['in memory', 'bytes', tensor => tensor.present_bytes],
    ['from files', 'bytes', tensor => tensor.file_bytes], ['blocks', 'count', tensor => tensor.blocks]], {before: tree(part)});

  const sourceOf = (block, units) => {
    const kinds = Object.entries(block.lineage_bytes).map(([kind, bytes], i) => html`${i > 0 ? ', ' : ''}${kind}${
      bytes === block.bytes ? '' : html` ${datum(bytes, inUnit(bytes, units.bytes))}`}`);
    return html`${kinds}${block.file === undefined ? '' : html` <span class="dim" title="${block.file}">${
      block.file.split('/').at(-1)} from ${block.file_offset}</span>`}`;
  };

  const PLAIN = 'the call needs the bytes';

  // The id of a block leads to its first event; page.js shows its events alone.
  const blocks = part => {
    const firsts = new Map(), data = part.data;
    data.events.forEach((event, i) => { if (!firsts.has(event.block)) firsts.set(event.block, i); });
    const numbers = new Map(data.blocks.map((block, i) => [block, i]));
    const link = block => firsts.has(block.id) ? html`<a href="#${part.id}-e${firsts.get(block.id)}" data-block="${
      block.id}" title="its events">${datum(block.id, block.id)}</a>` : datum(block.id, block.id);
    return html`${section(part, 'blocks', 'Blocks by size', [
      ['block', 'count', link], ['kind', 'word', block => block.kind],
      ['address', 'word', block => html`<code>${block.address}</code>`], ['device', 'count', block => block.device],
      ['bytes', 'bytes', block => block.bytes], ['backed', 'bytes', block => block.backed_bytes],
      ['deferred', 'bytes', block => block.deferred_bytes],
      ['state', 'word', block => html`<span class="state ${block.state}">${block.state}</span>`],
      ['tensor', 'text', block => block.name], ['what it has', 'text', sourceOf],
      ['backed for', 'text', block => [block.backed_call, block.backed_reason].filter(text =>
        text && text !== PLAIN).join(': ')]],
    {attributes: block => html` id="${part.id}-b${numbers.get(block)}" tabindex="-1"`})}${data.blocks_left_out > 0
      ? html`<p class="dim">${data.blocks_left_out} smaller blocks do not fit in the state page (METASHARD_STATE_BYTES), or in the 128 MiB of them that are read.</p>
` : ''}`;
  };

  const ALARMS = ['fail', 'fallback', 'out-of-plan read', 'pressure', 'differ'];
  const events = part => {
    const numbers = new Map(part.data.events.map((event, i) => [event, i])), loaded = part.data.loaded_ns || Infinity;
    const kind = event => event.kind === 'fallback' && event.reason === NO_RULE && event.time_ns > loaded ? 'used' : event.kind;
    const first = ending(part.data)?.first_ns, isAlarm = event => ALARMS.includes(kind(event)) &&
      !(event.kind === 'fallback' && (event.bytes < GRANULE || event.time_ns === first));
    return html`${section(part, 'events', part.data.left_out?.events ? 'The last events' : 'Events', [
      ['seconds', 'seconds', event => event.time_ns], ['kind', 'word', kind],
      ['bytes', 'bytes', event => event.bytes], ['time', 'time', event => event.duration_ns],
      ['block', 'count', event => event.block], ['call', 'word', event => event.call],
      ['kernel or tensor', 'text', event => event.text], ['why', 'text', event => event.reason],
      ['thread', 'count', event => event.thread]],
    {attributes: event => html` id="${part.id}-e${numbers.get(event)}" tabindex="-1"${
      isAlarm(event) ? html` class="alarm"` : ''}`})}${
      part.data.events_lost > 0
        ? html`<p class="dim">${part.data.events_lost} others do not fit in the state page (METASHARD_STATE_BYTES), or in the 64 MiB of them that are read.</p>
` : ''}`;
  };

  // --- the page

  const processPart = part => html`<section id="${part.id}" data-pid="${part.data.pid}">
${where(part.data)}${figures(part)}${planOf(part.data.plan)}${notes(part)}${selfChecks(part.data)}${particulars(part)}${
    chart(part)}${causes(part)}${map(part)}${tensors(part)}${blocks(part)}${events(part)}</section>
`;

  const countOf = view => `${view.processes.length} processes${
    view.runs ? ` of ${view.runs} run${view.runs > 1 ? 's' : ''}` : ''}`;

  const allParts = view => {
    const all = {id: 'all', data: view, processes: view.processes, isAll: true};
    return html`<header><h1>${countOf(view)}</h1></header>
<main>
<section id="all">
${figures(all)}${notes(all)}${processes(all)}${chart(all)}${causes(all)}${tensors(all)}</section>
<h2>Each process</h2>
${view.processes.map((data, i) => html`<details class="process"><summary><b>${processName(data)}</b> ${life(data)}</summary>
${processPart({id: `p${i}`, data, processes: [data], isInner: true})}</details>
`)}</main>
`;
  };

  const COMMAND_LENGTH = 80;
  const cut = text => {
    const letters = Array.from(text);
    return letters.length > COMMAND_LENGTH ? `${letters.slice(0, COMMAND_LENGTH - 1).join('')}…` : text;
  };

  // The title names the first of several runs: a browser has room for one.
  const titleOf = (heading, process) => `MetaShard ${process.version}: ${heading}, ${cut(process.command)}${
    process.job === null ? '' : `, job ${process.job}`}, ${new Date(Number(process.started_unix_ns) / 1e6).toISOString().slice(0, 10)}`;

  return view => view.processes
    ? {title: titleOf(countOf(view), view.processes[0]), body: allParts(view).text}
    : {title: titleOf(processName(view), view), body: html`<header><h1>${processName(view)}</h1><p>${life(view)}</p></header>
<main>
${processPart({id: 'p0', data: view, processes: [view]})}</main>
`.text};
})();
