//! Tests the dashboard in a real browser, with real traffic: checks the types in its JavaScript
//! modules, and then runs `tests/dashboard/*.test.mjs`. These scripts write screenshots to
//! `target/tmp/dashboard/`.
//!
//! The tests need Node, npm and Chromium (Debian's package `chromium`, or the path in `CHROMIUM`).
//! So they run only if they are requested, as in `.ci/run`: `cargo test --test dashboard --
//! --ignored`.

#![allow(clippy::unwrap_used, reason = "this file contains only tests")]

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
    sync::Once,
    time::Duration,
};

use bson::doc;
use mongodb::{Client, options::ClientOptions};
use seawall_mongod::find_or_fetch;
use seawall_tests::{
    eventually::eventually,
    mongod::{Options as ServerOptions, Standalone},
    process::{Process, binary},
    raw::RawClient,
    scratch::Scratch,
    seawall::{Options, Seawall},
};
use tokio::sync::Mutex;

const ACT_TOKEN: &str = "a-token-that-may-act";
const READ_TOKEN: &str = "a-token-that-may-read";

/// Clients choose the names of applications, collections and fields. The page must show these names
/// as text and never run them as HTML.
const HOSTILE_APPLICATION: &str = "<img src=x onerror=alert(1)>";
const HOSTILE_COLLECTION: &str = "<img src=x onerror=alert(2)>";
const HOSTILE_FIELD: &str = "</script><script>alert(3)</script>\u{2028}";

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/dashboard")
}

/// Runs a command in the folder of the browser tests.
fn run(program: &str, arguments: &[&str], variables: &[(&str, &str)]) {
    let mut command = Command::new(program);
    command.args(arguments).current_dir(folder());
    command.envs(variables.iter().copied());
    let output = command.output();
    let output = output.unwrap_or_else(|error| panic!("{program} is not installed: {error}"));
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let (out, errors) = (text(&output.stdout), text(&output.stderr));
    let status = output.status;
    assert!(
        status.success(),
        "{program} {arguments:?}: {status}\n{out}{errors}"
    );
}

/// Installs the npm packages of `package-lock.json` if they are missing or outdated. Runs once for
/// all tests, because the tests run in parallel.
fn install() {
    static INSTALLATION: Once = Once::new();
    INSTALLATION.call_once(install_packages);
}

fn install_packages() {
    let installed = folder().join("node_modules/.package-lock.json");
    let is_newer = |path: &Path| {
        let time = |path: &Path| fs::metadata(path).and_then(|of| of.modified()).ok();
        time(path) >= time(&folder().join("package-lock.json"))
    };
    if !installed.exists() || !is_newer(&installed) {
        let quiet = ["ci", "--ignore-scripts", "--no-audit", "--no-fund"];
        run("npm", &quiet, &[]);
    }
}

async fn client(seawall: &Seawall, application: &str) -> Client {
    let mut options = ClientOptions::parse(seawall.uri()).await.unwrap();
    options.app_name = Some(application.to_owned());
    Client::with_options(options).unwrap()
}

/// Runs several different commands on the database `shop`. Some of them fail. Returns the clients,
/// which stay connected.
async fn shop(seawall: &Seawall) -> Vec<Client> {
    let shop = client(seawall, "shop").await;
    let hostile = client(seawall, HOSTILE_APPLICATION).await;
    let orders = shop.database("shop").collection("orders");
    for number in 0..400 {
        let order = doc! { "customer": number % 20, "total": number };
        orders.insert_one(order).await.unwrap();
        let found = orders.find_one(doc! { "customer": number % 20 });
        found.sort(doc! { "total": -1 }).await.unwrap();
    }
    for command in [
        doc! { "find": "orders", "filter": { "$unknown": 1 } },
        doc! { "aggregate": "orders", "pipeline": [{ "$group": { "_id": "$customer" } }], "cursor": {} },
        doc! { "count": "customers", "query": { "city": "Kiel" } },
        doc! { "distinct": "orders", "key": "customer" },
        doc! { "find": HOSTILE_COLLECTION, "filter": { HOSTILE_FIELD: 1 } },
    ] {
        for _ in 0..30 {
            // The results are ignored, because the first command fails on purpose.
            drop(hostile.database("shop").run_command(command.clone()).await);
        }
    }
    vec![shop, hostile]
}

/// Number of operations that [`shop`] runs.
const OPERATIONS: u64 = 950;

/// Waits until Seawall's history, which counts operations by time, has all operations of [`shop`].
/// After that, the counts in the history do not change.
async fn wait_for_history(seawall: &Seawall) {
    let counted = async || {
        let timeline: seawall_api::Timeline = seawall.api("/api/v1/timeline?since=1h").await;
        let known: u64 = timeline.steps.iter().map(|step| step.count).sum();
        match known >= OPERATIONS {
            true => Ok(()),
            false => Err(format!(
                "the history has {known} of {OPERATIONS} operations"
            )),
        }
    };
    let limit = Duration::from_secs(20);
    if let Err(error) = eventually(limit, counted).await {
        panic!("{error}");
    }
}

/// The end of the period with which the reports compare the present (`--against`), in seconds since
/// 1970. The history begins later, so it has no data about this period.
const BASELINE: &str = "1700000000";

/// The paths of the files that `seawall report` writes about a running Seawall.
struct Reports {
    html: String,
    json: String,
    comparison: String,
}

impl Reports {
    fn write(files: &Scratch, admin: &str) -> Self {
        let path = |name: &str| files.path().join(name).display().to_string();
        let reports = Self {
            html: path("report.html"),
            json: path("report.json"),
            comparison: path("comparison.html"),
        };
        let report = |format, output: &str| {
            let baseline = ["--against", BASELINE];
            let output = ["--format", format, "--output", output];
            let arguments = [&["report"][..], &baseline, &output].concat();
            run(
                &program(),
                &[&arguments[..], &["--admin", admin]].concat(),
                &[],
            );
        };
        report("html", &reports.html);
        report("json", &reports.json);
        let compared = [&*reports.json, &reports.json];
        let output = ["--format", "html", "--output", &reports.comparison];
        let arguments = [&["report", "compare"][..], &compared, &output].concat();
        run(&program(), &arguments, &[]);
        reports
    }
}

fn program() -> String {
    binary().display().to_string()
}

/// Checks the types and the formatting in the sources of the dashboard and of the browser tests.
fn check_sources() {
    install();
    let compiler = folder().join("node_modules/.bin/tsc");
    run(compiler.to_str().unwrap(), &["-p", "tsconfig.json"], &[]);
    let formatter = folder().join("node_modules/.bin/prettier");
    let files = [
        "--config",
        ".prettierrc.json",
        "--check",
        "../../proxy/dashboard/*.{js,css,html,ts}",
        "*.mjs",
    ];
    run(formatter.to_str().unwrap(), &files, &[]);
}

/// The folder of the screenshots.
const SCREENSHOTS: &str = concat!(env!("CARGO_TARGET_TMPDIR"), "/dashboard");

/// All files run at the same time, because each test spends a part of its time waiting. By default,
/// Node would run one file at a time on two cores.
const PARALLEL_FILES: &str = "--test-concurrency=3";

/// The tests take turns. A browser uses all cores. In `episodes.test.mjs`, Seawall must report that
/// operations became slow, and could not see the difference if browsers of other tests slowed down
/// all operations.
static TURN: Mutex<()> = Mutex::const_new(());

/// Runs files of browser tests.
fn browse(files: &[&str], variables: &[(&str, &str)]) {
    let mut variables = variables.to_vec();
    variables.push(("SEAWALL_SCREENSHOTS", SCREENSHOTS));
    let arguments = [&["--test", PARALLEL_FILES], files].concat();
    tokio::task::block_in_place(|| run("node", &arguments, &variables));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs Node and Chromium; run by .ci/run"]
async fn dashboard_shows_the_numbers_of_the_api_in_a_real_browser() {
    let _turn = TURN.lock().await;
    tokio::task::block_in_place(check_sources);
    let server = Standalone::start(ServerOptions::default()).await.unwrap();
    let seawall = Seawall::start(&server.uri()).await;
    let _clients = shop(&seawall).await;
    wait_for_history(&seawall).await;
    let second = Seawall::start(&server.uri()).await;
    let _more_clients = shop(&second).await;
    wait_for_history(&second).await;
    // The second instance also shows the first instance, and a third one that does not reply.
    let peers = format!("{},127.0.0.1:1", seawall.app.admin_address().unwrap());
    second
        .reload(&format!("admin.peers = {peers:?}\n"))
        .await
        .unwrap();
    let files = Scratch::create().unwrap();
    let token_file = |name: &str, token: &str| files.write(name, token).unwrap();
    let toml = format!(
        "history.enabled = false\npool.concurrency = \"off\"\n\
         admin.token_file = {:?}\nadmin.read_token_file = {:?}\n",
        token_file("act", ACT_TOKEN),
        token_file("read", READ_TOKEN),
    );
    let options = Options {
        toml,
        ..Options::default()
    };
    let guarded = Seawall::launch(&server.uri(), options).await.unwrap();
    let address = |of: &Seawall| format!("http://{}", of.app.admin_address().unwrap());
    let reports = Reports::write(&files, &address(&seawall));
    let variables = [
        ("SEAWALL_ADMIN", &*address(&seawall)),
        ("SEAWALL_MERGED", &address(&second)),
        ("SEAWALL_GUARDED", &address(&guarded)),
        ("SEAWALL_ACT_TOKEN", ACT_TOKEN),
        ("SEAWALL_READ_TOKEN", READ_TOKEN),
        ("SEAWALL_REPORT_HTML", &reports.html),
        ("SEAWALL_REPORT_JSON", &reports.json),
        ("SEAWALL_COMPARISON_HTML", &reports.comparison),
    ];
    let tests = ["views.test.mjs", "figures.test.mjs", "report.test.mjs"];
    browse(&tests, &variables);
}

/// The browser script starts its own servers, because it stops one of them.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs Node and Chromium; run by .ci/run"]
async fn dashboard_shows_reconnect_storms_stalls_and_traffic_changes_as_the_api_reports_them() {
    let _turn = TURN.lock().await;
    tokio::task::block_in_place(install);
    let mongod = find_or_fetch(|_| {}).await.unwrap();
    let variables = [
        ("SEAWALL_BINARY", &*program()),
        ("SEAWALL_MONGOD", mongod.to_str().unwrap()),
    ];
    browse(&["episodes.test.mjs"], &variables);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs Node and Chromium; run by .ci/run"]
async fn reload_and_drain_on_the_dashboard_require_a_typed_confirmation() {
    let _turn = TURN.lock().await;
    tokio::task::block_in_place(install);
    let server = Standalone::start(ServerOptions::default()).await.unwrap();
    let files = Scratch::create().unwrap();
    let token = files.write("act", ACT_TOKEN).unwrap();
    let toml = format!(
        "listen.address = \"127.0.0.1:0\"\ndeployment.uri = {:?}\nadmin.address = \"127.0.0.1:0\"\n\
         admin.token_file = {token:?}\nshutdown.drain_ms = 600000\n\
         auth.authentication_timeout_ms = 600000\npool.max_pool_size = 7\n",
        server.uri()
    );
    let configuration = files.write("seawall.toml", toml).unwrap();
    let mut process = Process::serve(&configuration).await;
    // The drain lasts as long as this client stays connected. The client sends nothing, so it needs
    // a long authentication timeout.
    let client = RawClient::connect(process.address().parse().unwrap()).await;
    let variables = [
        ("SEAWALL_ACTED", &*format!("http://{}", process.admin())),
        ("SEAWALL_ACT_TOKEN", ACT_TOKEN),
        ("SEAWALL_CONFIGURATION", configuration.to_str().unwrap()),
    ];
    browse(&["actions.test.mjs"], &variables);
    drop(client.unwrap());
    assert!(process.ended().await.success());
}
