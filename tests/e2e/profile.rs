//! Tests of the CPU profile of Seawall's own process, which is requested over HTTP.

use bson::doc;
use seawall_tests::{mongod::shared_standalone, raw::RawClient, seawall::Seawall};

#[tokio::test]
async fn the_profile_api_returns_a_cpu_flame_graph_and_refuses_a_second_profile_at_the_same_time() {
    let server = shared_standalone().await.unwrap();
    let seawall = Seawall::start_configured(&server.uri(), "admin.profile = true\n").await;
    let address = seawall.address().parse().unwrap();
    let busy = async {
        let mut client = RawClient::connect(address).await.unwrap();
        loop {
            client.command("admin", doc! {"ping": 1}).await.unwrap();
        }
    };
    let profiled = seawall.get("/api/v1/profile?seconds=2&frequency=499");
    let (status, graph) = tokio::select! {
        profiled = profiled => profiled,
        () = busy => unreachable!("the load never ends"),
    };
    assert_eq!(status, 200, "{graph:.300}");
    assert!(graph.contains("<svg"), "{graph:.300}");
    // Each stack begins with its thread and the thread's first function. So the graph contains the
    // thread's name, functions of Seawall and functions of tokio.
    for part in ["seawall-data", "seawall::client", "tokio::runtime"] {
        assert!(graph.contains(part), "{part}");
    }
    // Durations and frequencies outside of their limits are refused, and so is a second profile at
    // the same time.
    for asked in [
        "seconds=0",
        "seconds=61",
        "frequency=0",
        "frequency=1000",
        "seconds=x",
    ] {
        let (status, why) = seawall.get(&format!("/api/v1/profile?{asked}")).await;
        assert_eq!(status, 400, "{asked}: {why}");
    }
    let both = tokio::join!(
        seawall.get("/api/v1/profile?seconds=1"),
        seawall.get("/api/v1/profile?seconds=1"),
    );
    let mut statuses = [both.0.0, both.1.0];
    statuses.sort_unstable();
    assert_eq!(statuses, [200, 409]);
}
