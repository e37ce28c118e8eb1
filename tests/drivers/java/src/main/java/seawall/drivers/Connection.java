package seawall.drivers;

import com.mongodb.ConnectionString;
import com.mongodb.MongoClientSettings;
import java.io.ByteArrayInputStream;
import java.io.IOException;
import java.net.URLDecoder;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.security.GeneralSecurityException;
import java.security.KeyFactory;
import java.security.KeyStore;
import java.security.PrivateKey;
import java.security.cert.Certificate;
import java.security.cert.CertificateFactory;
import java.security.spec.PKCS8EncodedKeySpec;
import java.util.Base64;
import java.util.Collection;
import java.util.regex.Matcher;
import java.util.regex.Pattern;
import javax.net.ssl.KeyManager;
import javax.net.ssl.KeyManagerFactory;
import javax.net.ssl.SSLContext;
import javax.net.ssl.TrustManager;
import javax.net.ssl.TrustManagerFactory;

/**
 * The client's settings, all from the connection string.
 *
 * <p>The driver reads no PEM files from the connection string, because Java keeps certificates and
 * keys in a store. So this class reads them.
 */
final class Connection {
    private static final Pattern CA_FILE = option("tlsCAFile");
    private static final Pattern KEY_FILE = option("tlsCertificateKeyFile");
    private static final Pattern PRIVATE_KEY =
            Pattern.compile("(?s)-----BEGIN PRIVATE KEY-----(.*?)-----END PRIVATE KEY-----");

    /** An empty password, because Java requires a password even for a key store in memory. */
    private static final char[] NO_PASSWORD = {};

    private Connection() {
    }

    static MongoClientSettings settings(String uri, boolean stable) throws GeneralSecurityException, IOException {
        MongoClientSettings.Builder settings = MongoClientSettings.builder();
        String caFile = value(CA_FILE, uri);
        String keyFile = value(KEY_FILE, uri);
        if (caFile != null || keyFile != null) {
            SSLContext context = SSLContext.getInstance("TLS");
            // Null selects Java's defaults: its own authorities, and no certificate.
            context.init(keyFile == null ? null : presented(keyFile), caFile == null ? null : trusted(caFile), null);
            settings.applyToSslSettings(tls -> tls.context(context));
        }
        String rest = KEY_FILE.matcher(CA_FILE.matcher(uri).replaceAll("")).replaceAll("");
        settings.applyConnectionString(new ConnectionString(rest));
        if (stable) {
            Version.stableApi(settings);
        }
        return settings.build();
    }

    private static TrustManager[] trusted(String caFile) throws GeneralSecurityException, IOException {
        KeyStore store = emptyStore();
        for (Certificate each : certificates(Files.readString(Path.of(caFile)))) {
            store.setCertificateEntry("ca-" + store.size(), each);
        }
        TrustManagerFactory managers = TrustManagerFactory.getInstance(TrustManagerFactory.getDefaultAlgorithm());
        managers.init(store);
        return managers.getTrustManagers();
    }

    /** The file has a certificate, perhaps with those of its authorities, and a key in PKCS #8. */
    private static KeyManager[] presented(String keyFile) throws GeneralSecurityException, IOException {
        String pem = Files.readString(Path.of(keyFile));
        Matcher key = PRIVATE_KEY.matcher(pem);
        if (!key.find()) {
            throw new IOException(keyFile + " has no key in PKCS #8");
        }
        PKCS8EncodedKeySpec encoded = new PKCS8EncodedKeySpec(Base64.getMimeDecoder().decode(key.group(1)));
        Certificate[] chain = certificates(key.replaceAll("")).toArray(Certificate[]::new);
        String algorithm = chain[0].getPublicKey().getAlgorithm();
        PrivateKey decoded = KeyFactory.getInstance(algorithm).generatePrivate(encoded);
        KeyStore store = emptyStore();
        store.setKeyEntry("client", decoded, NO_PASSWORD, chain);
        KeyManagerFactory managers = KeyManagerFactory.getInstance(KeyManagerFactory.getDefaultAlgorithm());
        managers.init(store, NO_PASSWORD);
        return managers.getKeyManagers();
    }

    private static KeyStore emptyStore() throws GeneralSecurityException, IOException {
        KeyStore store = KeyStore.getInstance(KeyStore.getDefaultType());
        store.load(null, null);
        return store;
    }

    private static Collection<? extends Certificate> certificates(String pem) throws GeneralSecurityException {
        byte[] text = pem.getBytes(StandardCharsets.UTF_8);
        return CertificateFactory.getInstance("X.509").generateCertificates(new ByteArrayInputStream(text));
    }

    private static Pattern option(String name) {
        return Pattern.compile("(?i)(?<=[?&])" + name + "=([^&]*)&?");
    }

    /** Null if the connection string lacks the option. */
    private static String value(Pattern option, String uri) {
        Matcher found = option.matcher(uri);
        return found.find() ? URLDecoder.decode(found.group(1), StandardCharsets.UTF_8) : null;
    }
}
