//! The OTLP metrics that Seawall exports. The tests receive them with an HTTP server of their own.

use std::{io::Read as _, sync::Arc, time::Duration};

use ::seawall::app::App;
use bson::{Document, doc};
use flate2::read::GzDecoder;
use opentelemetry_proto::tonic::{
    collector::metrics::v1::ExportMetricsServiceRequest,
    common::v1::{KeyValue, any_value},
    metrics::v1::{AggregationTemporality, ExponentialHistogramDataPoint, metric},
};
use prost::Message as _;
use seawall_config::{Overrides, Secret, Sources, load_with_values};
use seawall_locks::Mutex;
use seawall_tests::{
    authority::YEAR,
    certificates::Certificates,
    eventually::eventually,
    mongod::{ROOT, ROOT_PASSWORD, shared_replica_set, unique_name},
    scratch::Scratch,
    seawall::Seawall,
};
use tokio::{
    io::{AsyncRead, AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpListener, TcpSocket},
    task::JoinHandle,
};
use tokio_rustls::{
    TlsAcceptor,
    rustls::{
        RootCertStore, ServerConfig,
        crypto::ring,
        pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject as _},
        server::WebPkiClientVerifier,
    },
};

const LIMIT: Duration = Duration::from_secs(20);

/// A request that the receiver got.
#[derive(Clone, Debug)]
struct Export {
    /// The request line and the headers, as Seawall sent them.
    head: String,
    message: ExportMetricsServiceRequest,
}

/// A receiver that replies to each request with the same bytes. It stops when it is dropped.
struct Receiver {
    url: String,
    exports: Arc<Mutex<Vec<Export>>>,
    task: JoinHandle<()>,
}

impl Drop for Receiver {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Receiver {
    async fn start(response: Vec<u8>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let exports = Arc::new(Mutex::new(Vec::new()));
        let kept = Arc::clone(&exports);
        let task = tokio::spawn(async move {
            loop {
                let (mut stream, _) = listener.accept().await.unwrap();
                while let Some(export) = read(&mut stream).await {
                    kept.lock().push(export);
                    if stream.write_all(&response).await.is_err() {
                        break;
                    }
                }
            }
        });
        Self { url, exports, task }
    }

    /// Accepts exports over TLS, only from clients with a certificate that the authority of
    /// `certificates` has signed.
    async fn with_tls(certificates: &Certificates) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("https://{}", listener.local_addr().unwrap());
        let acceptor = acceptor(certificates);
        let exports = Arc::new(Mutex::new(Vec::new()));
        let kept = Arc::clone(&exports);
        let task = tokio::spawn(async move {
            loop {
                let (stream, _) = listener.accept().await.unwrap();
                let Ok(mut stream) = acceptor.accept(stream).await else {
                    continue;
                };
                while let Some(export) = read(&mut stream).await {
                    kept.lock().push(export);
                    if stream.write_all(ACCEPTED).await.is_err() {
                        break;
                    }
                }
            }
        });
        Self { url, exports, task }
    }

    async fn accepting() -> Self {
        Self::start(ACCEPTED.to_vec()).await
    }

    fn toml(&self, more: &str) -> String {
        format!(
            "[telemetry]\nenabled = true\nendpoint = {:?}\ninterval_ms = 100\n{more}",
            self.url
        )
    }

    /// The last export that the receiver has got.
    fn last(&self) -> Option<Export> {
        self.exports.lock().last().cloned()
    }

    /// Waits for the first export that arrives after this call began.
    async fn next(&self) -> Export {
        let seen = self.exports.lock().len();
        let next = || async { self.exports.lock().get(seen).cloned() };
        eventually(LIMIT, next).await.unwrap()
    }
}

const ACCEPTED: &[u8] = b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n";

fn acceptor(certificates: &Certificates) -> TlsAcceptor {
    let provider = Arc::new(ring::default_provider());
    let mut authorities = RootCertStore::empty();
    let authority = CertificateDer::from_pem_file(certificates.ca_file()).unwrap();
    authorities.add(authority).unwrap();
    let clients =
        WebPkiClientVerifier::builder_with_provider(authorities.into(), Arc::clone(&provider));
    let certificate = CertificateDer::from_pem_file(certificates.server_certificate_file());
    let key = PrivateKeyDer::from_pem_file(certificates.server_key_file());
    let config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_client_cert_verifier(clients.build().unwrap())
        .with_single_cert(vec![certificate.unwrap()], key.unwrap())
        .unwrap();
    TlsAcceptor::from(Arc::new(config))
}

/// Reads a request. `None` if the connection has ended.
async fn read(stream: &mut (impl AsyncRead + Unpin)) -> Option<Export> {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(stream.read_u8().await.ok()?);
    }
    let head = String::from_utf8(head).unwrap();
    let length = head.split("content-length: ").nth(1).unwrap();
    let length = length.split('\r').next().unwrap().parse().unwrap();
    let mut body = vec![0; length];
    stream.read_exact(&mut body).await.ok()?;
    if head.contains("content-encoding: gzip") {
        let mut decoded = Vec::new();
        GzDecoder::new(&*body).read_to_end(&mut decoded).unwrap();
        body = decoded;
    }
    let message = ExportMetricsServiceRequest::decode(&*body).unwrap();
    Some(Export { head, message })
}

impl Export {
    fn resource(&self, name: &str) -> String {
        let resource = self.message.resource_metrics[0].resource.as_ref().unwrap();
        attribute(&resource.attributes, name)
    }

    /// The exported histograms of the metric `db.client.operation.duration` for one database.
    fn operations(&self, db: &str) -> Vec<ExponentialHistogramDataPoint> {
        let scopes = &self.message.resource_metrics[0].scope_metrics;
        let metrics = scopes.iter().flat_map(|scope| &scope.metrics);
        let mut named = metrics.filter(|metric| metric.name == "db.client.operation.duration");
        let Some(metric) = named.next() else {
            return Vec::new();
        };
        assert_eq!(metric.unit, "s");
        let Some(metric::Data::ExponentialHistogram(histogram)) = &metric.data else {
            panic!("{metric:?}")
        };
        let temporality = histogram.aggregation_temporality();
        assert_eq!(temporality, AggregationTemporality::Cumulative);
        let points = histogram.data_points.iter();
        let of_db = points.filter(|point| attribute(&point.attributes, "db.namespace") == db);
        of_db.cloned().collect()
    }

    /// Counts the operations on `db` by the values of `attributes`. Returns each combination of
    /// values with its number of operations. Operations on other databases, such as `endSessions`
    /// on `admin`, are not counted.
    fn counts(&self, db: &str, attributes: &[&str]) -> Vec<(String, u64)> {
        let points = self.operations(db).into_iter().map(|point| {
            let buckets = point.positive.as_ref().unwrap();
            assert_eq!(buckets.bucket_counts.iter().sum::<u64>(), point.count);
            assert!(point.start_time_unix_nano < point.time_unix_nano);
            assert!(point.sum.unwrap() > 0.0);
            let values = attributes
                .iter()
                .map(|name| attribute(&point.attributes, name));
            (values.collect::<Vec<_>>().join(" "), point.count)
        });
        let mut counts: Vec<_> = points.collect();
        counts.sort();
        counts
    }
}

/// The text of an attribute; empty if it is absent.
fn attribute(attributes: &[KeyValue], name: &str) -> String {
    let attribute = attributes.iter().find(|of| of.key == name);
    let value = attribute.and_then(|of| of.value.as_ref()?.value.clone());
    match value {
        Some(any_value::Value::StringValue(text)) => text,
        None => String::new(),
        other => panic!("{name}: {other:?}"),
    }
}

async fn seawall(toml: String) -> Seawall {
    let set = shared_replica_set().await.unwrap();
    Seawall::start_configured(&set.uri(), &toml).await
}

/// Runs three inserts and seven finds, which succeed, and two commands that the server refuses.
async fn operate(seawall: &Seawall, db: &str) {
    let client = seawall.client(ROOT, ROOT_PASSWORD, "admin").await;
    let db = client.database(db);
    let orders = db.collection::<Document>("orders");
    for n in 0..3 {
        orders.insert_one(doc! { "n": n }).await.unwrap();
    }
    for _ in 0..7 {
        orders.find_one(doc! { "n": 1 }).await.unwrap();
    }
    for _ in 0..2 {
        let wrong = db.run_command(doc! { "count": "orders", "query": { "$no": 1 } });
        assert!(wrong.await.is_err());
    }
}

const NAMES: [&str; 6] = [
    "db.system.name",
    "db.operation.name",
    "db.collection.name",
    "db.query.summary",
    "db.response.status_code",
    "error.type",
];

fn expected() -> Vec<(String, u64)> {
    let expected = [
        ("mongodb count orders count orders 2 2", 2),
        ("mongodb find orders find orders  ", 7),
        ("mongodb insert orders insert orders  ", 3),
    ];
    expected
        .map(|(values, count)| (values.to_owned(), count))
        .into()
}

#[tokio::test(flavor = "multi_thread")]
async fn exported_counts_equal_the_operations_performed() {
    let receiver = Receiver::accepting().await;
    let more = "compression = \"gzip\"\nheaders = \"x-tenant=a%20b\"\nservice_name = \"orders\"\n";
    let seawall = seawall(receiver.toml(more)).await;
    let db = unique_name("telemetry");
    operate(&seawall, &db).await;
    let all = || async {
        let counts = receiver.last().map(|export| export.counts(&db, &NAMES));
        match counts {
            Some(counts) if counts == expected() => Ok(()),
            other => Err(format!("{other:?}")),
        }
    };
    eventually(LIMIT, all).await.unwrap();
    let export = receiver.next().await;
    assert!(export.head.starts_with("POST /v1/metrics HTTP/1.1\r\n"));
    assert!(
        export
            .head
            .contains("content-type: application/x-protobuf\r\n")
    );
    assert!(export.head.contains("x-tenant: a b\r\n"));
    assert_eq!(export.resource("service.name"), "orders");
    assert_eq!(
        export.resource("service.version"),
        env!("CARGO_PKG_VERSION")
    );
    assert!(!export.resource("host.name").is_empty());
    assert_eq!(export.resource("service.instance.id").len(), 36);
    let exports = seawall.metric("seawall_telemetry_exports_total", &["result=\"ok\""]);
    assert!(exports.await >= 1.0);
    let other = Receiver::accepting().await;
    seawall.reload(&other.toml("")).await.unwrap();
    assert_eq!(other.next().await.counts(&db, &NAMES), expected());
    seawall.reload("").await.unwrap();
    drop(other);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_export_at_the_end_of_a_graceful_shutdown_has_the_counts_of_all_operations() {
    let receiver = Receiver::accepting().await;
    let toml = receiver.toml("").replace("interval_ms = 100", "");
    let seawall = seawall(toml).await;
    let db = unique_name("telemetry");
    operate(&seawall, &db).await;
    assert!(receiver.last().is_none());
    seawall.app.drain(async {}).await;
    assert_eq!(receiver.last().unwrap().counts(&db, &NAMES), expected());
}

#[tokio::test(flavor = "multi_thread")]
async fn after_a_failed_export_the_next_receiver_gets_the_counts_of_all_operations() {
    // The socket keeps its port, and refuses connections because it does not listen.
    let bound = TcpSocket::new_v4().unwrap();
    bound.bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let refusing = format!("http://{}", bound.local_addr().unwrap());
    let busy = "HTTP/1.1 503 Busy\r\nretry-after: 9\r\ncontent-length: 0\r\n\r\n";
    let huge = format!(
        "HTTP/1.1 200 OK\r\ncontent-length: 9999999\r\n\r\n{}",
        "x".repeat(9_999_999)
    );
    let hanging = Receiver::start(Vec::new()).await;
    let busy = Receiver::start(busy.into()).await;
    let huge = Receiver::start(huge.into()).await;
    let accepting = Receiver::accepting().await;
    let seawall = seawall(String::new()).await;
    for (url, result) in [
        (&hanging.url, "timed_out"),
        (&refusing, "overtaken"),
        (&busy.url, "overtaken"),
        (&huge.url, "failed"),
    ] {
        let label = format!("result=\"{result}\"");
        let before = seawall
            .metric("seawall_telemetry_exports_total", &[&label])
            .await;
        let toml = format!(
            "[telemetry]\nenabled = true\nendpoint = {url:?}\ninterval_ms = 100\ntimeout_ms = 200\n"
        );
        seawall.reload(&toml).await.unwrap();
        let db = unique_name("telemetry");
        operate(&seawall, &db).await;
        let counted = || async {
            seawall
                .metric("seawall_telemetry_exports_total", &[&label])
                .await
                > before
        };
        eventually(LIMIT, counted)
            .await
            .unwrap_or_else(|error| panic!("{url} {result}: {error}"));
        // No count is lost: the next receiver gets all operations.
        seawall.reload(&accepting.toml("")).await.unwrap();
        let complete = || async { accepting.next().await.counts(&db, &NAMES) == expected() };
        eventually(LIMIT, complete).await.unwrap();
    }
    // The busy receiver asked Seawall to wait for nine seconds (`retry-after`). So Seawall sent
    // only one export to this receiver.
    assert_eq!(busy.exports.lock().len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn environment_variables_of_opentelemetry_configure_the_export() {
    let receiver = Receiver::accepting().await;
    let set = shared_replica_set().await.unwrap();
    let endpoint = format!("{}/other/path", receiver.url);
    let variables = [
        ("SEAWALL_TELEMETRY__ENABLED", "true"),
        ("SEAWALL_ADMIN__ADDRESS", "off"),
        ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:1"),
        ("OTEL_EXPORTER_OTLP_METRICS_ENDPOINT", &endpoint),
        ("OTEL_EXPORTER_OTLP_HEADERS", "x-tenant=c"),
        ("OTEL_METRIC_EXPORT_INTERVAL", "100"),
        (
            "OTEL_RESOURCE_ATTRIBUTES",
            "service.name=from-variable,team=d",
        ),
    ];
    let environment = variables.map(|(name, value)| (name.to_owned(), value.to_owned()));
    let loaded = load_with_values(&Sources {
        environment: environment.into(),
        overrides: Overrides {
            deployment: Some(Secret::new(set.uri())),
            listen: vec!["127.0.0.1:0".to_owned()],
            ..Overrides::default()
        },
        ..Sources::default()
    });
    let app = Box::pin(App::start(loaded.unwrap())).await.unwrap();
    let export = receiver.next().await;
    assert!(export.head.starts_with("POST /other/path HTTP/1.1\r\n"));
    assert!(export.head.contains("x-tenant: c\r\n"));
    assert_eq!(export.resource("service.name"), "from-variable");
    assert_eq!(export.resource("team"), "d");
    drop(app);
}

#[tokio::test(flavor = "multi_thread")]
async fn exports_over_tls_verify_the_receiver_and_present_a_client_certificate() {
    let certificates = Certificates::generate().unwrap();
    let client = certificates.authority().client("seawall", YEAR).unwrap();
    let scratch = Scratch::create().unwrap();
    let certificate = scratch.write("certificate.pem", &client.certificate);
    let key = scratch.write("key.pem", &client.key);
    let files = format!(
        "certificate_file = {:?}\nkey_file = {:?}\n",
        certificate.unwrap(),
        key.unwrap()
    );
    let receiver = Receiver::with_tls(&certificates).await;
    // Without `telemetry.ca_file`, Seawall trusts the authorities of the operating system. The
    // receiver's authority is not one of them, so the first exports fail. Seawall retries each of
    // them until the next export is due, and counts it as `overtaken`.
    let seawall = seawall(receiver.toml(&files)).await;
    let refused = || async {
        let label = "result=\"overtaken\"";
        seawall
            .metric("seawall_telemetry_exports_total", &[label])
            .await
            > 0.0
    };
    eventually(LIMIT, refused).await.unwrap();
    assert!(receiver.last().is_none());
    let authority = format!("ca_file = {:?}\n", certificates.ca_file());
    seawall
        .reload(&receiver.toml(&(files + &authority)))
        .await
        .unwrap();
    let export = receiver.next().await;
    assert_eq!(export.resource("service.name"), "seawall");
}
