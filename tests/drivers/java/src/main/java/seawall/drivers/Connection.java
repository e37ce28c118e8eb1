package seawall.drivers;

import com.mongodb.ConnectionString;
import com.mongodb.MongoClientSettings;
import java.io.IOException;
import java.io.InputStream;
import java.net.URLDecoder;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.security.GeneralSecurityException;
import java.security.KeyStore;
import java.security.cert.Certificate;
import java.security.cert.CertificateFactory;
import java.util.regex.Matcher;
import java.util.regex.Pattern;
import javax.net.ssl.SSLContext;
import javax.net.ssl.TrustManagerFactory;

/** The client's settings, all from the connection string. */
final class Connection {
    /**
     * The driver reads no CA file from the connection string, because Java keeps trusted
     * certificates in a store.
     */
    private static final Pattern CA_FILE = Pattern.compile("(?i)(?<=[?&])tlsCAFile=([^&]*)&?");

    private Connection() {
    }

    static MongoClientSettings settings(String uri, boolean stable) throws GeneralSecurityException, IOException {
        Matcher caFile = CA_FILE.matcher(uri);
        MongoClientSettings.Builder settings = MongoClientSettings.builder();
        if (caFile.find()) {
            SSLContext trusting = trusting(Path.of(URLDecoder.decode(caFile.group(1), StandardCharsets.UTF_8)));
            settings.applyToSslSettings(tls -> tls.context(trusting));
        }
        settings.applyConnectionString(new ConnectionString(caFile.replaceAll("")));
        if (stable) {
            Version.stableApi(settings);
        }
        return settings.build();
    }

    private static SSLContext trusting(Path pem) throws GeneralSecurityException, IOException {
        KeyStore trusted = KeyStore.getInstance(KeyStore.getDefaultType());
        trusted.load(null, null);
        try (InputStream file = Files.newInputStream(pem)) {
            for (Certificate each : CertificateFactory.getInstance("X.509").generateCertificates(file)) {
                trusted.setCertificateEntry("ca-" + trusted.size(), each);
            }
        }
        TrustManagerFactory managers = TrustManagerFactory.getInstance(TrustManagerFactory.getDefaultAlgorithm());
        managers.init(trusted);
        SSLContext context = SSLContext.getInstance("TLS");
        context.init(null, managers.getTrustManagers(), null);
        return context;
    }
}
