//! Reloads with `reload.watch`, reloads of broken configurations, and reloads during which opening
//! or reading a file hangs.

use std::{
    cell::Cell,
    fs,
    mem::MaybeUninit,
    os::{fd::OwnedFd, unix::fs::symlink},
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::Duration,
};

use mongodb::{
    Client,
    bson::{Document, doc},
};
use rustix::{
    fs::{
        CWD, FileType, Mode,
        inotify::{self, CreateFlags, WatchFlags},
        mknodat,
    },
    io::Errno,
    process::Signal,
};
use seawall_api::{Configuration, Reload};
use seawall_tests::{
    eventually::eventually,
    mongod::{ROOT, ROOT_PASSWORD, unique_name},
    scratch::Scratch,
};
use tokio::task::JoinSet;

use crate::served::Served;

const LIMIT: Duration = Duration::from_secs(60);

/// The log message of a reload that failed.
const NOT_RELOADED: &str = "could not reload the configuration";

/// The log message of a reload that was applied.
const RELOADED: &str = "configuration reloaded";

/// Waits until the log has this message, this number of times. The thread that writes the log may
/// be late. Fails if the log then has the message more often.
async fn has_said(served: &Served, message: &str, times: usize) {
    let are_written = async || served.process.said_times(message) >= times;
    eventually(LIMIT, are_written).await.unwrap();
    assert_eq!(served.process.said_times(message), times);
}

/// Counts how often the readers of a file close it.
struct Readers {
    events: OwnedFd,
    closed: Cell<usize>,
}

impl Readers {
    /// Watches the readers of the file at `path`, which must not be a symbolic link.
    fn of(path: &Path) -> Self {
        let events = inotify::init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK).unwrap();
        inotify::add_watch(&events, path, WatchFlags::CLOSE_NOWRITE).unwrap();
        Self {
            events,
            closed: Cell::new(0),
        }
    }

    /// Waits until Seawall, which watches the file, has read it twice and compared the two
    /// contents. Seawall closes the file after each read, and begins the third read only after this
    /// comparison. So the function waits until the file has been closed three times.
    async fn have_compared(&self) {
        let are_enough = async || {
            let mut buffer = [MaybeUninit::uninit(); 1024];
            let mut reader = inotify::Reader::new(&self.events, &mut buffer);
            loop {
                match reader.next() {
                    Ok(_) => self.closed.set(self.closed.get() + 1),
                    Err(Errno::AGAIN) => return self.closed.get() >= 3,
                    Err(error) => panic!("{error}"),
                }
            }
        };
        eventually(LIMIT, are_enough).await.unwrap();
    }
}

#[tokio::test]
async fn with_reload_watch_a_reload_happens_only_if_the_content_of_the_file_changes() {
    let served = Served::start("reload.watch = true\n").await;
    let next = served.scratch.join("next.toml");
    let replace = |toml: &str| {
        let toml = format!("{}reload.watch = true\n{toml}", served.base);
        fs::write(&next, toml).unwrap();
        let readers = Readers::of(&next);
        fs::rename(&next, &served.file).unwrap();
        readers
    };
    replace("pool.max_pool_size = 9\n");
    served.has("pool.max_pool_size", "9").await;
    // A new file with the same content causes no reload.
    replace("pool.max_pool_size = 9\n").have_compared().await;
    has_said(&served, RELOADED, 1).await;
    // A broken file is reported only once, even if it is read many times.
    replace("pool.max_pool_size = 0\n").have_compared().await;
    has_said(&served, NOT_RELOADED, 1).await;
    replace("pool.max_pool_size = 11\n");
    served.has("pool.max_pool_size", "11").await;
    has_said(&served, RELOADED, 2).await;
    assert_eq!(served.process.said_times(NOT_RELOADED), 1);
}

/// Kubernetes mounts a folder in which each file is a link to `..data/FILE`, and `..data` is a link
/// to a folder. An update writes a new folder and replaces `..data`.
#[tokio::test]
async fn with_reload_watch_a_replaced_symbolic_link_of_a_mounted_folder_causes_a_reload() {
    let served = Served::start("reload.watch = true\n").await;
    let mount = |folder: &str, size: usize| {
        let folder = served.scratch.join(folder);
        fs::create_dir(&folder).unwrap();
        let file = folder.join("seawall.toml");
        let toml = format!(
            "{}reload.watch = true\npool.max_pool_size = {size}\n",
            served.base
        );
        fs::write(&file, toml).unwrap();
        let link = served.scratch.join("..data_tmp");
        symlink(&folder, &link).unwrap();
        fs::rename(&link, served.scratch.join("..data")).unwrap();
        file
    };
    mount("..first", 9);
    let link = served.scratch.join("link");
    symlink("..data/seawall.toml", &link).unwrap();
    fs::rename(&link, &served.file).unwrap();
    served.has("pool.max_pool_size", "9").await;
    mount("..second", 11);
    served.has("pool.max_pool_size", "11").await;
    let same = mount("..third", 11);
    Readers::of(&same).have_compared().await;
    has_said(&served, RELOADED, 2).await;
    assert_eq!(served.process.said_times(NOT_RELOADED), 0);
}

/// Clients that write and read documents without retries, until they are stopped.
struct UnretriedLoad {
    clients: JoinSet<()>,
    operations: Arc<AtomicUsize>,
    is_stopped: Arc<AtomicBool>,
}

impl UnretriedLoad {
    async fn start(address: &str) -> Self {
        let uri = format!(
            "mongodb://{ROOT}:{ROOT_PASSWORD}@{address}/?retryWrites=false&retryReads=false"
        );
        let client = Client::with_uri_str(uri).await.unwrap();
        let mut load = Self {
            clients: JoinSet::new(),
            operations: Arc::default(),
            is_stopped: Arc::default(),
        };
        let database = client.database(&unique_name("faults"));
        for writer in 0..8 {
            let things = database.collection::<Document>("things");
            let operations = Arc::clone(&load.operations);
            let is_stopped = Arc::clone(&load.is_stopped);
            load.clients.spawn(async move {
                for number in 0.. {
                    if is_stopped.load(Ordering::Relaxed) {
                        return;
                    }
                    let id = format!("{writer}-{number}");
                    things.insert_one(doc! { "_id": &id }).await.unwrap();
                    let found = things.find_one(doc! { "_id": &id }).await.unwrap();
                    assert_eq!(found.unwrap().get_str("_id").unwrap(), id);
                    operations.fetch_add(2, Ordering::Relaxed);
                }
            });
        }
        load
    }

    /// Waits until the clients have completed 32 more operations.
    async fn proceeds(&self) {
        let before = self.operations.load(Ordering::Relaxed);
        let proceeds = async || self.operations.load(Ordering::Relaxed) >= before + 32;
        eventually(LIMIT, proceeds).await.unwrap();
    }

    /// Ends the clients. Panics if any of their operations has failed.
    async fn end(self) {
        self.is_stopped.store(true, Ordering::Relaxed);
        self.clients.join_all().await;
    }
}

fn user(name: &str, password: &str) -> String {
    format!("[[auth.users]]\nname = {name:?}\npassword = {password:?}\n")
}

/// A valid configuration with two users: the root user, as whom [`UnretriedLoad`] logs in, and the
/// user `other`.
fn running(other: &str) -> String {
    let users = user(ROOT, ROOT_PASSWORD) + &user(other, "password");
    format!("pool.max_pool_size = 7\n{users}")
}

/// A function that breaks the configuration, and a part of the text of each problem that must be
/// reported. No other problem may be reported.
type Breaking = (fn(&Served), &'static [&'static str]);

const BREAKINGS: [Breaking; 5] = [
    (
        |served| served.write("pool.max_pool_size = 0\npool.max_connecting = 0\n"),
        &["pool.max_pool_size", "pool.max_connecting"],
    ),
    (
        |served| {
            served.write(
                "listen.tls.certificate_file = \"/nowhere\"\nlisten.tls.key_file = \"/nowhere\"\n",
            );
        },
        &["listen.tls.certificate_file", "listen.tls.key_file"],
    ),
    (
        |served| {
            fs::remove_file(&served.file).unwrap();
            fs::create_dir(&served.file).unwrap();
        },
        &["must be a readable configuration file"],
    ),
    (
        |served| served.write(&(user("twice", "one") + &user("twice", "two") + "[pool]\nsize = 1")),
        &["auth.users", "pool.size"],
    ),
    (
        // Each value has a valid form, so Seawall tries to use the values. Three values cannot be
        // used.
        |served| {
            let base = served.base.replace("mongodb://", "mongodb://:99999999,");
            let file = served
                .scratch
                .write("damaged.pem", "no certificate")
                .unwrap();
            let toml = format!(
                "{base}slow_log.file = \"/nowhere/slow.jsonl\"\n\
                 listen.tls.certificate_file = {file:?}\nlisten.tls.key_file = {file:?}\n"
            );
            fs::write(&served.file, toml).unwrap();
        },
        &["deployment.uri", "listen.tls", "slow_log.file"],
    ),
];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reload_of_a_broken_configuration_under_load_changes_nothing_and_no_operation_fails() {
    let served = Served::start(&running("first")).await;
    let load = UnretriedLoad::start(served.process.address()).await;
    let configuration = async || -> Configuration {
        let asked = served.admin().ask("/api/v1/config").await;
        asked.unwrap()
    };
    let before = configuration().await;
    let mut failures = 0;
    for others in [["second", "third"], ["third", "second"]] {
        for (break_it, expected) in BREAKINGS {
            load.proceeds().await;
            break_it(&served);
            let refused: Reload = served.admin().post("/api/v1/reload").await.unwrap();
            assert!(!refused.applied && refused.changes.is_empty());
            assert_eq!(refused.problems.len(), expected.len(), "{refused:?}");
            for problem in expected {
                let is_reported = refused.problems.iter().any(|text| text.contains(problem));
                assert!(is_reported, "{problem}: {refused:?}");
            }
            assert_eq!(configuration().await, before);
            failures += 1;
            if served.file.is_dir() {
                fs::remove_dir(&served.file).unwrap();
            }
        }
        // Under the same load, valid reloads replace the second user.
        for other in others {
            load.proceeds().await;
            served.write(&running(other));
            let reload: Reload = served.admin().post("/api/v1/reload").await.unwrap();
            assert!(reload.applied, "{reload:?}");
            let keys: Vec<_> = reload.changes.iter().map(|change| &*change.key).collect();
            assert_eq!(keys, ["auth.users[1].name"]);
        }
        served.write(&running("first"));
        let _: Reload = served.admin().post("/api/v1/reload").await.unwrap();
        assert_eq!(configuration().await, before);
    }
    load.proceeds().await;
    load.end().await;
    has_said(&served, NOT_RELOADED, failures).await;
}

#[tokio::test]
async fn a_reload_that_fails_creates_no_slow_log() {
    let served = Served::start("").await;
    let scratch = Scratch::create().unwrap();
    let slow: PathBuf = scratch.join("slow.jsonl");
    let file = scratch.write("damaged.pem", "no certificate").unwrap();
    served.write(&format!(
        "slow_log.file = {slow:?}\n\
         listen.tls.certificate_file = {file:?}\nlisten.tls.key_file = {file:?}\n"
    ));
    let refused: Reload = served.admin().post("/api/v1/reload").await.unwrap();
    assert_eq!(refused.problems.len(), 1, "{refused:?}");
    assert!(!slow.exists());
}

/// Creates a named pipe. It behaves like a file on a network file system that hangs: the call that
/// opens one end blocks until the other end is opened.
fn pipe(scratch: &Scratch, name: &str) -> PathBuf {
    let pipe = scratch.join(name);
    mknodat(CWD, &pipe, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
    pipe
}

/// Replaces the configuration by a named pipe.
fn replace_by_pipe(served: &Served) {
    fs::rename(pipe(&served.scratch, "pipe"), &served.file).unwrap();
}

const HANGS: &str = "could not be opened or read within 10 s";

#[tokio::test]
async fn reloads_are_refused_and_clients_are_served_while_a_file_read_hangs() {
    let mut served = Served::start("reload.watch = true\n").await;
    replace_by_pipe(&served);
    let refused: Reload = served.admin().post("/api/v1/reload").await.unwrap();
    let [problem] = &*refused.problems else {
        panic!("{refused:?}")
    };
    assert!(problem.contains(HANGS), "{problem}");
    let uri = format!(
        "mongodb://{ROOT}:{ROOT_PASSWORD}@{}/",
        served.process.address()
    );
    let client = Client::with_uri_str(uri).await.unwrap();
    let admin = client.database("admin");
    admin.run_command(doc! { "ping": 1 }).await.unwrap();
    served.process.signal(Signal::TERM);
    assert!(served.process.ended().await.success());
}

#[tokio::test]
async fn the_process_drains_and_ends_although_opening_a_new_slow_log_or_tls_file_hangs() {
    let mut served = Served::start("").await;
    let [slow, authorities] = ["slow", "authorities"].map(|name| pipe(&served.scratch, name));
    let uri = format!(
        "mongodb://127.0.0.1:1/?tls=true&tlsCAFile={}",
        authorities.display()
    );
    let changes = [
        format!("{}slow_log.file = {slow:?}\n", served.base),
        format!(
            "listen.address = \"127.0.0.1:0\"\nadmin.address = \"127.0.0.1:0\"\n\
             deployment.uri = {uri:?}\n"
        ),
    ];
    for (changed, key) in changes.into_iter().zip(["slow_log.file", "deployment.uri"]) {
        fs::write(&served.file, changed).unwrap();
        let refused: Reload = served.admin().post("/api/v1/reload").await.unwrap();
        let [problem] = &*refused.problems else {
            panic!("{refused:?}")
        };
        assert!(
            problem.starts_with(key) && problem.contains(HANGS),
            "{problem}"
        );
    }
    served.process.signal(Signal::TERM);
    assert!(served.process.ended().await.success());
}

/// A separate thread opens the slow log, and hangs. The later reload changes only peers without
/// TLS, which need no file.
#[tokio::test]
async fn a_slow_log_that_hangs_does_not_prevent_a_later_reload_of_the_peers() {
    let served = Served::start("").await;
    let slow = pipe(&served.scratch, "slow");
    let peers = "admin.peers = \"http://127.0.0.1:1\"\n";
    served.write(&format!("slow_log.file = {slow:?}\n{peers}"));
    let refused: Reload = served.admin().post("/api/v1/reload").await.unwrap();
    let [problem] = &*refused.problems else {
        panic!("{refused:?}")
    };
    assert!(
        problem.starts_with("slow_log.file") && problem.contains(HANGS),
        "{problem}"
    );
    served.write(peers);
    let reload: Reload = served.admin().post("/api/v1/reload").await.unwrap();
    assert!(reload.applied, "{reload:?}");
}

/// Without `admin.peer_ca_file`, Seawall trusts the authorities of the operating system for peers
/// with TLS.
#[tokio::test]
async fn the_process_drains_and_ends_although_reading_the_authorities_of_the_system_hangs() {
    let scratch = Scratch::create().unwrap();
    let variable = format!("SSL_CERT_FILE={}", pipe(&scratch, "authorities").display());
    let mut served = Served::launch(&["env", &variable], "").await;
    served.write("admin.peers = \"https://127.0.0.1:1\"\n");
    let refused: Reload = served.admin().post("/api/v1/reload").await.unwrap();
    let [problem] = &*refused.problems else {
        panic!("{refused:?}")
    };
    assert!(problem.contains("authorities"), "{problem}");
    assert!(problem.contains(HANGS), "{problem}");
    served.process.signal(Signal::TERM);
    assert!(served.process.ended().await.success());
}

#[tokio::test]
async fn a_reload_after_a_hanging_file_read_uses_the_new_content_of_the_file() {
    let served = Served::start("").await;
    replace_by_pipe(&served);
    let refused: Reload = served.admin().post("/api/v1/reload").await.unwrap();
    assert_eq!(refused.problems.len(), 1, "{refused:?}");
    // A writer opens and closes the pipe. The read that hangs then ends with an empty
    // configuration, which the next reload must not use.
    let earlier = served.scratch.join("earlier");
    fs::rename(&served.file, &earlier).unwrap();
    served.write("pool.max_pool_size = 9\n");
    drop(fs::OpenOptions::new().write(true).open(&earlier).unwrap());
    let reload: Reload = served.admin().post("/api/v1/reload").await.unwrap();
    assert!(reload.applied, "{reload:?}");
    served.has("pool.max_pool_size", "9").await;
}
