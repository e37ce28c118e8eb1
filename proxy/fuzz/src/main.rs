//! Runs the fuzz targets without cargo-fuzz: each file of a target's corpus, then a bounded number of inputs made of them.
//!
//! Ends with an error at the first input for which a property does not hold or that takes too long; the input is saved.

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

/// An input that takes longer is a failure. The slowest takes milliseconds, but a busy machine may stop a process for seconds.
const LONGEST_EXECUTION: Duration = Duration::from_secs(10);

/// As much as a thread of Tokio has, on which all of this runs in Seawall.
const STACK_BYTES: usize = 2 << 20;

/// Executes each fuzz target with its corpus and with inputs made of it
#[derive(Debug, Parser)]
struct Arguments {
    /// Inputs for each target, beside its corpus
    #[arg(long, default_value_t = 100_000)]
    executions: u64,
    /// End a target after this time even if inputs are left
    #[arg(long)]
    max_seconds: Option<u64>,
    /// The target to run; several are possible; all without it
    #[arg(long = "target", value_name = "NAME")]
    targets: Vec<String>,
    /// Where the sequence of inputs begins
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// The folder with a folder of files for each target
    #[arg(long, default_value = concat!(env!("CARGO_MANIFEST_DIR"), "/corpus"))]
    corpus: PathBuf,
    /// Where to save an input that fails
    #[arg(long, default_value = concat!(env!("CARGO_MANIFEST_DIR"), "/artifacts"))]
    artifacts: PathBuf,
    /// Save each input before it runs: finds the one that ends the process
    #[arg(long)]
    save_each: bool,
    /// Replace the corpus files with generated ones and exit
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

/// Runs the targets asked for, one after another; false at the first failure.
fn run(arguments: &Arguments) -> io::Result<bool> {
    let is_asked = |name: &str| {
        arguments.targets.is_empty() || arguments.targets.iter().any(|asked| asked == name)
    };
    let unknown = |asked: &&String| !TARGETS.iter().any(|(name, _)| name == asked);
    if let Some(unknown) = arguments.targets.iter().find(unknown) {
        return Err(io::Error::other(format!("no target {unknown}")));
    }
    report("| target | corpus | executions | seconds |\n|---|---|---|---|");
    let (began, mut executions) = (Instant::now(), 0);
    for (name, target) in TARGETS.iter().filter(|(name, _)| is_asked(name)) {
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

#[expect(clippy::print_stdout, reason = "this is what the program is for")]
fn report(line: &str) {
    println!("{line}");
    io::stdout().flush().ok();
}

/// The files of a folder in the order of their names, so that a seed means the same everywhere.
fn corpus(folder: &Path) -> io::Result<Vec<Vec<u8>>> {
    let entries = fs::read_dir(folder)?.collect::<io::Result<Vec<_>>>()?;
    let mut files: Vec<_> = entries.iter().map(fs::DirEntry::path).collect();
    files.sort();
    files.iter().map(fs::read).collect()
}

/// One target under way.
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
            ended.unwrap_or_else(|_| Err(io::Error::other("the driver panicked")))
        })
    }

    /// The number of executions, or why it ended early.
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
            // The panic's message has been written by its hook.
            Err(_) => Err("panicked".to_owned()),
            Ok(()) if took > LONGEST_EXECUTION => Err(format!("took {} ms", took.as_millis())),
            Ok(()) => Ok(()),
        }
    }

    fn fail(&self, input: &[u8], failure: &str) -> io::Result<String> {
        let path = self.save(input)?;
        let length = input.len();
        Ok(format!(
            "{failure} with the {length} bytes of {}",
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
