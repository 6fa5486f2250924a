// SPDX-License-Identifier: Apache-2.0
// draw_page.js SCRIPT PAGE...: pages of metashard-dump show --html as the script draws them, without a browser. Prints a JSON
// list; in place of a page that cannot be drawn it has the reason.
'use strict';
const {readFileSync} = require('node:fs');

const [script, ...pages] = process.argv.slice(2);
const drawPage = new Function(`${readFileSync(script, 'utf8')}; return drawPage;`)();

const draw = path => {
  const text = readFileSync(path, 'utf8');
  try {
    const {title, body} = drawPage(JSON.parse(/<script type="application\/json" id="data">(.*?)<\/script>/s.exec(text)[1]));
    const escaped = title.replace(/&/g, '&amp;').replace(/</g, '&lt;');
    return text.replace('<title>MetaShard', () => `<title>${escaped}`).replace('<body>', () => `<body>\n${body}`);
  } catch (error) {
    return error.stack;
  }
};

process.stdout.write(JSON.stringify(pages.map(draw)));
