// An HTTP server in node that answers each request with the path that it asks for.
const [host, port] = process.argv.slice(2);
const server = require('node:http').createServer((request, response) => {
  response.setHeader('Content-Length', Buffer.byteLength(request.url));
  response.end(request.url);
});
server.listen(Number(port), host);
process.on('SIGTERM', () => {
  console.log('ended by SIGTERM');
  process.exit(0);
});
