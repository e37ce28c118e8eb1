//! Measures how fast `--max` sends small commands, and how exactly `--speed` keeps their intervals.
//! Replays finds of 32 clients to a stub server. Prints the rate, the CPU time of the replay's
//! process, and the errors of the intervals. The stub is a separate process.
//!
//! ```sh
//! cargo build --release -p seawall-replay --example speed
//! taskset -c 1 target/release/examples/speed stub                  # prints its address
//! taskset -c 0 target/release/examples/speed 320000 ADDRESS
//! target/release/examples/speed 50000 ADDRESS 0.1                  # 5,000/s; captured: 50,000/s
//! ```

#![allow(clippy::print_stdout, reason = "a tool for measurements")]

use std::{
    env,
    error::Error,
    fs::{self, File},
    io::{self, BufWriter},
    path::Path,
    time::Duration,
};

use bson::rawdoc;
use bytes::Bytes;
use seawall_capture::{
    Writer,
    record::{Command, Content, End, EndReason, Facts, Header, Reply},
};
use seawall_load::Target;
use seawall_replay::{Choice, Pace, Replay, Source, run};
use seawall_wire::{HEADER_BYTES, encode_op_msg_like, encode_request};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    runtime::Builder,
};

const CLIENTS: u64 = 32;

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = env::args().skip(1).collect();
    match &arguments[..] {
        [stub] if stub == "stub" => serve_all(),
        [commands, address, speed @ ..] => {
            let pace = match speed {
                [speed, ..] => Pace::Speed(speed.parse()?),
                [] => Pace::Max,
            };
            let path = env::temp_dir().join(format!("seawall-speed-{}.swc", std::process::id()));
            let written = write_capture(&path, commands.parse()?);
            let result = written.and_then(|()| measure(&path, address, pace));
            drop(fs::remove_file(&path));
            result
        }
        _ => Err("usage: speed stub | speed COMMANDS ADDRESS [SPEED]".into()),
    }
}

fn measure(path: &Path, address: &str, pace: Pace) -> Result<(), Box<dyn Error>> {
    let before_us = cpu_us()?;
    // The command `seawall load replay` runs in a runtime with the same settings.
    let runtime = Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()?;
    let report = runtime.block_on(async {
        let replay = Replay {
            target: Target::parse(&format!("mongodb://{address}/")).await?,
            choice: Choice::default(),
            pace,
            strict_order: false,
            connections: 1_000,
            reply_limit: Duration::from_secs(60),
            digest: false,
            max_error_share: 0.0,
            writes_to_unidentified: false,
        };
        let source = Source::open(path)?;
        let report = run(replay, source, |_| {}, std::future::pending()).await?;
        Ok::<_, Box<dyn Error>>(report)
    })?;
    let sent = seawall_stats::float(report.sent);
    println!("{} commands, {:.0}/s", report.sent, sent / report.seconds);
    let (lag, error) = (&report.lag, &report.interval_error);
    println!(
        "lag p50 {:.2} ms, p99 {:.2} ms; error of intervals p50 {:.2} ms, p99 {:.2} ms",
        lag.p50_ms, lag.p99_ms, error.p50_ms, error.p99_ms
    );
    let each_us = (cpu_us()? - before_us) / sent;
    println!("{each_us:.2} µs of CPU per command");
    let status = fs::read_to_string("/proc/self/status")?;
    for line in status.lines().filter(|line| line.starts_with("VmHWM")) {
        println!("{line}");
    }
    Ok(())
}

/// CPU time of all threads of this process, in microseconds.
fn cpu_us() -> Result<f64, Box<dyn Error>> {
    let mut cpu_ns = 0;
    for entry in fs::read_dir("/proc/self/task")? {
        let times = fs::read_to_string(entry?.path().join("schedstat"))?;
        cpu_ns += times.split(' ').next().unwrap_or_default().parse::<u64>()?;
    }
    Ok(seawall_stats::float(cpu_ns) / 1e3)
}

fn write_capture(path: &Path, commands: u64) -> Result<(), Box<dyn Error>> {
    let header = Header {
        capture: Bytes::from_static(&[1; 16]),
        began_at_us: 1_700_000_000_000_000,
        ..Header::default()
    };
    let mut writer = Writer::new(BufWriter::new(File::create(path)?), header)?;
    for operation in 0..commands {
        let mut id = [7; 16];
        let client = operation % CLIENTS;
        id[..8].copy_from_slice(&client.to_le_bytes());
        let id = bson::Binary {
            subtype: bson::spec::BinarySubtype::Uuid,
            bytes: id.to_vec(),
        };
        let number = i64::try_from(operation)?;
        let find = rawdoc! {
            "find": "things", "filter": { "_id": number, "kind": "small" }, "limit": 1,
            "singleBatch": true, "lsid": { "id": id }, "$db": "load",
        };
        let at_us = operation * 20;
        let command = Command {
            client,
            operation,
            at_us,
            message: encode_request(1, find.as_bytes()).into(),
        };
        writer.push(&Content::Command(command).into())?;
        let reply = Reply {
            operation,
            at_us: at_us + 10,
            duration_us: 10,
            bytes: 100,
            facts: Some(Facts {
                ok: true,
                ..Facts::default()
            }),
            ..Reply::default()
        };
        writer.push(&Content::Reply(reply).into())?;
    }
    let mut end = End::default();
    end.set_reason(EndReason::Stopped);
    writer.finish(end)?;
    Ok(())
}

/// Replies to every command with an empty batch, until the process ends.
fn serve_all() -> Result<(), Box<dyn Error>> {
    let runtime = Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        println!("{}", listener.local_addr()?);
        loop {
            let (stream, _) = listener.accept().await?;
            stream.set_nodelay(true)?;
            tokio::spawn(serve(stream));
        }
    })
}

async fn serve(mut stream: TcpStream) -> io::Result<()> {
    let body = rawdoc! {
        "cursor": { "firstBatch": [], "id": 0_i64, "ns": "load.things" }, "ok": 1.0,
    };
    let mut reply = encode_op_msg_like(0, 1, 0, body.as_bytes());
    let mut buffer = Vec::with_capacity(4096);
    while stream.read_buf(&mut buffer).await? > 0 {
        while let Some(head) = buffer.first_chunk::<HEADER_BYTES>() {
            let [a, b, c, d, e, f, g, h, ..] = *head;
            let length = usize::try_from(i32::from_le_bytes([a, b, c, d])).unwrap_or(usize::MAX);
            if buffer.len() < length {
                break;
            }
            if let Some(response_to) = reply.get_mut(8..12) {
                response_to.copy_from_slice(&[e, f, g, h]);
            }
            stream.write_all(&reply).await?;
            buffer.drain(..length);
        }
    }
    Ok(())
}
