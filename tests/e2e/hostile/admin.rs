//! Requests that a hostile web page sends to the admin address. The browser runs on Seawall's
//! machine.

use seawall_tests::{mongod::shared_standalone, seawall::Seawall};

const FORBIDDEN: u16 = 403;

#[tokio::test]
async fn requests_from_foreign_web_pages_are_refused_if_no_admin_token_is_configured() {
    let server = shared_standalone().await.unwrap();
    let seawall = Seawall::start(&server.uri()).await;
    let foreign = [
        "Origin: https://evil.example\r\n",
        "Origin: null\r\n",
        "Sec-Fetch-Site: cross-site\r\n",
    ];
    for headers in foreign {
        for (method, path) in [
            ("POST", "/api/v1/drain"),
            ("GET", "/api/v1/clients"),
            ("GET", "/metrics"),
        ] {
            let (status, why) = seawall.request(method, path, headers).await;
            assert_eq!(status, FORBIDDEN, "{method} {path} {headers}: {why}");
        }
        let (status, _) = seawall.request("GET", "/health/ready", headers).await;
        assert_eq!(
            status, 200,
            "{headers}: expected every page to get the health, and Seawall not to be draining"
        );
    }
    let (status, _) = seawall.get("/api/v1/profile?seconds=1").await;
    assert_eq!(status, FORBIDDEN, "expected profiles to be off by default");
}
