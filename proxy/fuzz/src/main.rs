//! Runs the fuzz targets without cargo-fuzz: each file of a target's corpus, then a bounded number
//! of inputs generated from the corpus.
//!
//! Stops with an error at the first input that takes too long, or for which a property does not
//! hold. Saves that input.

use std::{
    fs, io,
    io::Write as _,
    panic::{self, AssertUnwindSafe},
    path::{Path, PathBuf},
    process::ExitCode,
    thread,
    time::Duration,
};

use clap::Parser;
use seawall_fuzz::{TARGETS, Target, mutation::Mutator, seeds};
use tokio::time::Instant;

/// Maximum time for one input; a slower input is a failure. Every input takes only milliseconds,
/// but a busy machine may stop a process for seconds.
const LONGEST_EXECUTION: Duration = Duration::from_secs(10);

/// The stack size of Tokio's threads. Seawall runs the tested code on such threads.
const STACK_BYTES: usize = 2 << 20;

/// Runs each fuzz target with its corpus and with inputs generated from it
#[derive(Debug, Parser)]
struct Arguments {
    /// Number of generated inputs for each target, in addition to its corpus
    #[arg(long, default_value_t = 100_000)]
    executions: u64,
    /// Maximum time for each target; the remaining inputs are skipped
    #[arg(long)]
    max_seconds: Option<u64>,
    /// Run only this target; can be given several times
    #[arg(long = "target", value_name = "NAME")]
    targets: Vec<String>,
    /// Seed of the generated inputs
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Folder of the corpora, with one folder for each target
    #[arg(long, default_value = concat!(env!("CARGO_MANIFEST_DIR"), "/corpus"))]
    corpus: PathBuf,
    /// Folder for inputs that fail
    #[arg(long, default_value = concat!(env!("CARGO_MANIFEST_DIR"), "/artifacts"))]
    artifacts: PathBuf,
    /// Save each input before it runs, to find an input that makes the process exit
    #[arg(long)]
    save_each: bool,
    /// Replace the corpus files with generated files and exit
    #[arg(long)]
    write_corpus: bool,
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let outcome = match arguments.write_corpus {
        true => seeds::write(&arguments.corpus).map(|()| true),
        false => run(&arguments),
    };
    match outcome {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            report(&format!("seawall-fuzz: {error}"));
            ExitCode::FAILURE
        }
    }
}

/// Runs the selected targets, one after another. Returns false at the first failure.
fn run(arguments: &Arguments) -> io::Result<bool> {
    let is_selected = |name: &str| {
        arguments.targets.is_empty() || arguments.targets.iter().any(|wanted| wanted == name)
    };
    let unknown = |wanted: &&String| !TARGETS.iter().any(|(name, _)| name == wanted);
    if let Some(unknown) = arguments.targets.iter().find(unknown) {
        return Err(io::Error::other(format!("unknown target {unknown}")));
    }
    report("| target | corpus | executions | seconds |\n|---|---|---|---|");
    let (began, mut executions) = (Instant::now(), 0);
    for (name, target) in TARGETS.iter().filter(|(name, _)| is_selected(name)) {
        let began = Instant::now();
        let corpus = corpus(&arguments.corpus.join(name))?;
        let run = Run {
            name,
            target: *target,
            arguments,
        };
        match run.on_thread(&corpus)? {
            Ok(count) => {
                executions += count;
                let (files, seconds) = (corpus.len(), began.elapsed().as_secs_f64());
                report(&format!("| {name} | {files} | {count} | {seconds:.1} |"));
            }
            Err(failure) => {
                report(&format!("{name}: {failure}"));
                return Ok(false);
            }
        }
    }
    let seconds = began.elapsed().as_secs_f64();
    report(&format!("| all | | {executions} | {seconds:.1} |"));
    Ok(true)
}

#[expect(clippy::print_stdout, reason = "the report is the program's output")]
fn report(line: &str) {
    println!("{line}");
    io::stdout().flush().ok();
}

/// Returns the contents of the folder's files, ordered by name, so that the same random seed gives
/// the same inputs on every machine.
fn corpus(folder: &Path) -> io::Result<Vec<Vec<u8>>> {
    let entries = fs::read_dir(folder)?.collect::<io::Result<Vec<_>>>()?;
    let mut files: Vec<_> = entries.iter().map(fs::DirEntry::path).collect();
    files.sort();
    files.iter().map(fs::read).collect()
}

/// One target, and the arguments of the program.
struct Run<'a> {
    name: &'a str,
    target: Target,
    arguments: &'a Arguments,
}

impl Run<'_> {
    fn on_thread(&self, corpus: &[Vec<u8>]) -> io::Result<Result<u64, String>> {
        thread::scope(|scope| {
            let builder = thread::Builder::new().stack_size(STACK_BYTES);
            let thread = builder.spawn_scoped(scope, || self.all(corpus))?;
            let ended = thread.join();
            ended
                .unwrap_or_else(|_| Err(io::Error::other("the thread panicked outside the target")))
        })
    }

    /// Executes the target with the corpus and with generated inputs. Returns the number of
    /// executions, or the failure that ended the run.
    fn all(&self, corpus: &[Vec<u8>]) -> io::Result<Result<u64, String>> {
        let began = Instant::now();
        let limit = self.arguments.max_seconds.map(Duration::from_secs);
        let mut mutator = Mutator::new(corpus, self.arguments.seed);
        let mut executions = 0;
        for input in corpus {
            executions += 1;
            if let Err(failure) = self.execute(input) {
                return self.fail(input, &failure).map(Err);
            }
        }
        for count in 0..self.arguments.executions {
            let input = mutator.next_input();
            executions += 1;
            if let Err(failure) = self.execute(input) {
                return self.fail(input, &failure).map(Err);
            }
            let is_over = || limit.is_some_and(|limit| began.elapsed() >= limit);
            if count.is_multiple_of(1_024) && is_over() {
                break;
            }
        }
        Ok(Ok(executions))
    }

    fn execute(&self, input: &[u8]) -> Result<(), String> {
        if self.arguments.save_each {
            self.save(input).map_err(|error| error.to_string())?;
        }
        let began = Instant::now();
        let ended = panic::catch_unwind(AssertUnwindSafe(|| (self.target)(input)));
        let took = began.elapsed();
        match ended {
            // The panic hook has already printed the message of the panic.
            Err(_) => Err("panicked".to_owned()),
            Ok(()) if took > LONGEST_EXECUTION => Err(format!("took {} ms", took.as_millis())),
            Ok(()) => Ok(()),
        }
    }

    fn fail(&self, input: &[u8], failure: &str) -> io::Result<String> {
        let path = self.save(input)?;
        let length = input.len();
        Ok(format!(
            "{failure} with the input of {length} bytes in {}",
            path.display()
        ))
    }

    fn save(&self, input: &[u8]) -> io::Result<PathBuf> {
        fs::create_dir_all(&self.arguments.artifacts)?;
        let name = format!("{}-{}", self.name, self.arguments.seed);
        let path = self.arguments.artifacts.join(name);
        fs::write(&path, input)?;
        Ok(path)
    }
}
