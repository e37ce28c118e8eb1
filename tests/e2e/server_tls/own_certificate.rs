//! Servers that require a client certificate and refuse the certificate of Seawall.

use std::fs;

use futures_util::future::join_all;
use seawall_tests::{
    authority::{Authority, Identity, YEAR},
    eventually::eventually,
    mongod, process,
    scratch::Scratch,
};

use super::{FILES, LIMIT, ServerTlsScene, TLS, check_refusal, find, logged_in, serve};

/// A mongod accepts every certificate in the TLS handshake and then closes the connection without
/// an alert, so only its own log has the reason.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_log_and_seawall_check_name_a_client_certificate_that_a_server_refuses() {
    let options = mongod::Options {
        requires_client_certificates: true,
        ..mongod::Options::with_auth()
    };
    let mut scene = ServerTlsScene::with(options).await;
    let revoked = scene.authority().client("revoked", YEAR).unwrap();
    scene.write_list(&[&revoked]);
    let list = format!("--tlsCRLFile={}", scene.scratch.join("crl.pem").display());
    let restarted = scene.server.mongod_mut().restart_with(&list).await;
    restarted.unwrap();
    let expired = scene.authority().expired_client("expired").unwrap();
    let foreign = Authority::generate("foreign").unwrap();
    let foreign = foreign.client("foreign", YEAR).unwrap();
    let self_signed = Identity::self_signed("self-signed").unwrap();
    let has_expired = "the server asked for a client certificate, and Seawall's has expired";
    let is_refused = "the server asked for a client certificate, and may have refused Seawall's";
    let cases = [
        (expired, has_expired),
        (revoked, is_refused),
        (foreign, is_refused),
        (self_signed, is_refused),
    ];
    let checks = cases.iter().map(|case| check(&scene, &case.0, case.1));
    join_all(checks).await;
    let log = scene.server.mongod().data_dir().join("mongod.log");
    let log = fs::read_to_string(log).unwrap();
    for reason in [
        "certificate has expired",
        "certificate revoked",
        // mongod logs this reason for the foreign and for the self-signed certificate, because it
        // has no revocation list of their issuers.
        "unable to get certificate CRL",
    ] {
        let refusal = format!("SSL peer certificate validation failed: {reason}");
        assert!(log.contains(&refusal), "{refusal}: {log}");
    }
    // With a valid certificate, Seawall can use the server.
    let seawall = scene.start("127.0.0.1", FILES).await;
    let connected = async || logged_in(&seawall).await;
    let mut client = eventually(LIMIT, connected).await.unwrap();
    assert!(find(&mut client).await);
}

/// Starts Seawall with this client certificate. Checks that the log and `seawall check` have the
/// cause, and that a client cannot log in.
async fn check(scene: &ServerTlsScene, identity: &Identity, cause: &str) {
    let scratch = Scratch::create().unwrap();
    for file in ["ca.pem", "crl.pem"] {
        fs::copy(scene.scratch.join(file), scratch.join(file)).unwrap();
    }
    scratch.write("client.pem", identity.pem()).unwrap();
    let port = scene.server.address().port();
    let toml = format!("deployment.server_selection_timeout_ms = 1000\n{FILES}");
    let process = serve(&scratch, port, TLS, &toml).await;
    check_refusal(&process, cause).await;
    let file = scratch.join(&format!("seawall-{port}.toml"));
    let arguments = ["check", "--connect", "--config", file.to_str().unwrap()];
    let checked = process::run(&arguments).await;
    let error = String::from_utf8(checked.stderr).unwrap();
    assert!(error.contains(cause), "{cause}: {error}");
}
