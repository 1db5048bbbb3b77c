import java.io.IOException;
import java.net.InetSocketAddress;
import java.net.StandardSocketOptions;
import java.nio.ByteBuffer;
import java.nio.channels.SelectionKey;
import java.nio.channels.Selector;
import java.nio.channels.ServerSocketChannel;
import java.nio.channels.SocketChannel;
import java.nio.charset.StandardCharsets;

/** An HTTP server on one selector of java.nio that answers each request with the path that it asks for. */
public class HttpServer {
    private static final class Client {
        final ByteBuffer in = ByteBuffer.allocate(16384);
        ByteBuffer out = ByteBuffer.allocate(0);
    }

    public static void main(String[] arguments) throws IOException {
        Runtime.getRuntime().addShutdownHook(new Thread(() -> System.out.println("ended by SIGTERM")));
        Selector selector = Selector.open();
        ServerSocketChannel listener = ServerSocketChannel.open();
        listener.bind(new InetSocketAddress(arguments[0], Integer.parseInt(arguments[1])));
        listener.configureBlocking(false);
        listener.register(selector, SelectionKey.OP_ACCEPT);
        while (true) {
            selector.select();
            var keys = selector.selectedKeys().iterator();
            while (keys.hasNext()) {
                SelectionKey key = keys.next();
                keys.remove();
                if (key.isAcceptable()) {
                    SocketChannel accepted = listener.accept();
                    if (accepted != null) {
                        accepted.configureBlocking(false);
                        accepted.setOption(StandardSocketOptions.TCP_NODELAY, true);
                        accepted.register(selector, SelectionKey.OP_READ, new Client());
                    }
                } else {
                    serve(key);
                }
            }
        }
    }

    private static void serve(SelectionKey key) throws IOException {
        SocketChannel channel = (SocketChannel) key.channel();
        Client client = (Client) key.attachment();
        if (key.isReadable() && channel.read(client.in) < 0) {
            channel.close();
            return;
        }
        while (!client.out.hasRemaining() && answer(client)) {
            channel.write(client.out);
        }
        if (client.out.hasRemaining()) {
            channel.write(client.out);
        }
        key.interestOps(client.out.hasRemaining() ? SelectionKey.OP_WRITE : SelectionKey.OP_READ);
    }

    private static boolean answer(Client client) {
        String text = new String(client.in.array(), 0, client.in.position(), StandardCharsets.ISO_8859_1);
        int end = text.indexOf("\r\n\r\n");
        if (end < 0) {
            return false;
        }
        String path = text.split(" ", 3)[1];
        String head = "HTTP/1.1 200 OK\r\nContent-Length: " + path.length() + "\r\n\r\n";
        client.out = ByteBuffer.wrap((head + path).getBytes(StandardCharsets.ISO_8859_1));
        client.in.flip().position(end + 4);
        client.in.compact();
        return true;
    }
}
