//! Follows the runbook, `docs/operations.md`: runs the `seawall` commands in the code blocks of the
//! page, in their order, against a real server.

use std::{collections::BTreeMap, fs, path::Path};

use seawall_tests::{
    mongod::shared_standalone,
    process::{Process, run},
    scratch::Scratch,
};

/// Programs that the test does not run, because they take minutes, or need root, systemd, a
/// container daemon, a cluster or mongosh.
const SKIPPED: [&str; 7] = [
    "cargo",
    "docker",
    "helm",
    "install",
    "kubectl",
    "mongosh",
    "systemctl",
];

/// The admin address that a command uses if it has no option `--admin`.
const DEFAULT_ADMIN: &str = "http://127.0.0.1:9909";

/// The configuration files in the runbook, and the admin addresses of their instances.
const FILES: [(&str, &str); 2] = [
    ("/etc/seawall/seawall.toml", DEFAULT_ADMIN),
    ("/etc/seawall/new.toml", "http://127.0.0.1:9919"),
];

/// A substitute for the machine on which an operator follows the runbook: the configuration files,
/// and the running instances of Seawall.
struct Machine {
    scratch: Scratch,
    /// The running instances, by the admin address that the runbook gives them.
    instances: BTreeMap<&'static str, Process>,
}

impl Machine {
    async fn prepare() -> Self {
        let server = shared_standalone().await.unwrap();
        let scratch = Scratch::create().unwrap();
        let toml = format!(
            "listen.address = \"127.0.0.1:0\"\nadmin.address = \"127.0.0.1:0\"\ndeployment.uri = {:?}\n",
            server.uri()
        );
        for (path, _) in FILES {
            let name = Path::new(path).file_name().unwrap().to_str().unwrap();
            scratch.write(name, &toml).unwrap();
        }
        Self {
            scratch,
            instances: BTreeMap::new(),
        }
    }

    /// Runs `seawall` with these arguments. The command must succeed.
    async fn run(&mut self, arguments: &[&str]) {
        let files = FILES.map(|(path, admin)| {
            let name = Path::new(path).file_name().unwrap();
            (path, admin, self.scratch.path().join(name))
        });
        if arguments.first() == Some(&"serve") {
            let of_file = files.iter().find(|(path, ..)| arguments.contains(path));
            let (_, admin, file) = of_file.unwrap_or_else(|| panic!("{arguments:?}"));
            let process = Process::serve(file).await;
            assert!(self.instances.insert(admin, process).is_none());
            return;
        }
        // Replaces the runbook's addresses and files by the addresses and files of this test, also
        // in the middle of an argument.
        let mut words: Vec<String> = arguments.iter().map(|&word| word.to_owned()).collect();
        for word in &mut words {
            for (path, admin, file) in &files {
                *word = word.replace(path, file.to_str().unwrap());
                if let Some(process) = self.instances.get(admin) {
                    *word = word.replace(admin, process.admin());
                }
            }
        }
        let is_local = ["check"].contains(&arguments[0]);
        if !is_local && !arguments.contains(&"--admin") {
            let process = &self.instances[DEFAULT_ADMIN];
            words.extend(["--admin".to_owned(), process.admin().to_owned()]);
        }
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        let output = run(&words).await;
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{arguments:?}: {error}");
        if arguments[0] == "shutdown" {
            let stopped = files.iter().find(|(_, admin, _)| arguments.contains(admin));
            let mut process = self.instances.remove(stopped.unwrap().1).unwrap();
            assert!(process.ended().await.success());
        }
    }
}

#[tokio::test]
async fn the_seawall_commands_of_the_operations_page_succeed_in_the_order_of_the_page() {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/operations.md");
    let page = fs::read_to_string(page).unwrap();
    let mut machine = Machine::prepare().await;
    let (mut followed, mut skipped) = (Vec::new(), Vec::new());
    let blocks = page.split("\n```sh\n").skip(1);
    for line in blocks.flat_map(|block| block.split("\n```").next().unwrap().lines()) {
        let words: Vec<&str> = line.split_whitespace().collect();
        match words.split_first() {
            Some((&"seawall", arguments)) => {
                machine.run(arguments).await;
                followed.push(line);
            }
            Some((program, _)) => {
                assert!(
                    SKIPPED.contains(program),
                    "the test neither runs nor skips this command: {line}"
                );
                skipped.push(line);
            }
            None => {}
        }
    }
    #[expect(
        clippy::print_stdout,
        reason = "the output of the test shows which commands ran"
    )]
    {
        println!("followed:\n  {}", followed.join("\n  "));
        println!("skipped:\n  {}", skipped.join("\n  "));
    }
    assert!(
        followed.len() >= 18,
        "expected at least 18 commands, got {followed:?}"
    );
}
