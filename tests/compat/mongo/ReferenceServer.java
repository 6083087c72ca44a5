import de.bwaldvogel.mongo.MongoServer;
import de.bwaldvogel.mongo.ServerVersion;
import de.bwaldvogel.mongo.backend.memory.MemoryBackend;
import java.lang.reflect.Field;
import java.net.InetSocketAddress;

/** The reference server on a free port of loopback. Says its port, and ends when its input does. */
public class ReferenceServer {
    public static void main(String[] arguments) throws Exception {
        // Drivers of today refuse the wire version that it claims; the commands of the tests are the same.
        Field version = ServerVersion.class.getDeclaredField("wireVersion");
        version.setAccessible(true);
        for (ServerVersion one : ServerVersion.values()) {
            version.setInt(one, 21);
        }
        MemoryBackend backend = new MemoryBackend();
        backend.version(ServerVersion.values()[ServerVersion.values().length - 1]);
        MongoServer server = new MongoServer(backend);
        InetSocketAddress address = server.bind();
        System.out.println(address.getPort());
        System.out.flush();
        while (System.in.read() >= 0) {
        }
        server.shutdownNow();
    }
}
