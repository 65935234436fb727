//! A responder in another process, controlled by lines of JSON on its standard input.

use super::figures::{EndFigures, Start};
use super::line::FarEnd;
use super::outcome::Cell;
use super::{Args, LOOK_EVERY, STEPS, failure};
use crate::bench::pinning;
use crate::problem::Problem;
use crate::sim::Failure;
use longhaul_datapath::{End, Introduction, Role, TransferConfig, resident_bytes};
use longhaul_port::Port;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::io::{BufRead as _, BufReader, Write as _};
use std::path::Path;
use std::process::{Child as Process, ChildStdout, Command, ExitCode, Stdio};
use std::sync::mpsc::{Receiver, TryRecvError, channel};
use std::time::Instant;

/// An order to a responder.
#[derive(Debug, Serialize, Deserialize)]
enum Order {
    /// The requester's parameters.
    Connect { qpns: Vec<u32>, rkey: u32 },
    /// Starts the measurement; the reply is `null`.
    Begin,
    /// Requests the figures.
    End,
}

/// Its first message; figures follow.
#[derive(Debug, Serialize, Deserialize)]
struct Hello {
    qpns: Vec<u32>,
    rkey: u32,
}

/// A responder in another process.
pub struct Child {
    process: Process,
    answers: BufReader<ChildStdout>,
}

impl Child {
    /// Starts this program as the responder.
    pub fn start(
        args: &Args,
        cell: &Cell,
        is_watched: bool,
        folder: &Path,
    ) -> Result<Self, Problem> {
        let refused = |e| Problem::plain(format!("cannot start the responder: {e}"));
        let mut command = Command::new(std::env::current_exe().map_err(refused)?);
        command.args(["bench", "rnic", "--serve"]).arg(folder);
        command.args(["--over", cell.over.name(), "--op", cell.operation.name()]);
        command.args([
            "--size",
            &cell.message_bytes.to_string(),
            "--mtu",
            &cell.mtu.bytes().to_string(),
        ]);
        command.args(["--qps", &cell.qps.to_string(), "--depth", &cell.depth.to_string()]);
        command.args(["--ring", &args.ring.to_string()]);
        if let [requester, responder] = args.interfaces.as_slice() {
            let bare = |interface: String| interface.trim_start_matches("xdp:").to_owned();
            command.args([
                "--interfaces",
                &bare(requester.to_string()),
                &bare(responder.to_string()),
            ]);
        }
        if is_watched {
            command.arg("--parts");
        }
        command.args(args.cores.get(1).map(|core| format!("--cores={core}")));
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut process = pinning::start_unpinned(&mut command).map_err(refused)?;
        let answers = process.stdout.take().map(BufReader::new);
        let answers = answers.ok_or_else(|| Problem::plain("the responder has no output"))?;
        Ok(Child { process, answers })
    }

    fn tell(&mut self, order: &Order) -> Result<(), Problem> {
        let text = serde_json::to_string(order).map_err(|e| Problem::plain(e.to_string()))?;
        let stdin = self.process.stdin.as_mut();
        let told = stdin.map(|stdin| writeln!(stdin, "{text}"));
        match told {
            Some(Ok(())) => Ok(()),
            _ => Err(self.ended()),
        }
    }

    fn hear<A: DeserializeOwned>(&mut self) -> Result<A, Problem> {
        let mut line = String::new();
        match self.answers.read_line(&mut line) {
            Ok(read) if read > 0 => serde_json::from_str(&line)
                .map_err(|e| Problem::plain(format!("the responder said what it should not: {e}"))),
            _ => Err(self.ended()),
        }
    }

    /// Its own message is on standard error.
    fn ended(&mut self) -> Problem {
        Problem::plain(format!("the responder ended early: {:?}", self.process.wait()))
    }
}

impl FarEnd for Child {
    fn introduce(&mut self, requester: &Introduction) -> Result<Introduction, Failure> {
        let Hello { qpns, rkey } = self.hear()?;
        self.tell(&Order::Connect { qpns: requester.qpns.clone(), rkey: requester.rkey })?;
        Ok(Introduction { qpns, rkey })
    }

    fn step(&mut self) -> Result<bool, Failure> {
        Ok(false)
    }

    fn begin(&mut self) -> Result<(), Failure> {
        self.tell(&Order::Begin)?;
        // Wait for the reply, because messages before it would not be counted.
        Ok(self.hear()?)
    }

    fn end(&mut self) -> Result<EndFigures, Failure> {
        self.tell(&Order::End)?;
        Ok(self.hear()?)
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        // It may already have ended.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Runs the responder at `port`, until standard input ends.
pub fn serve<P: Port>(port: P, config: TransferConfig) -> Result<ExitCode, Failure> {
    let mut end = End::new(Role::Responder, config, port).map_err(failure)?;
    let Introduction { qpns, rkey } = end.introduction();
    say(&Hello { qpns, rkey })?;
    let orders = orders();
    // Packets that arrive before the queue pairs are connected would be lost.
    match orders.recv() {
        Ok(Order::Connect { qpns, rkey }) => {
            end.connect(&Introduction { qpns, rkey }).map_err(failure)?
        }
        _ => return Err(Problem::plain("nobody said who the requester is").into()),
    }
    let mut start = None;
    let (mut look_at, mut most) = (Instant::now() + LOOK_EVERY, 0);
    loop {
        match orders.try_recv() {
            Ok(Order::Begin) => {
                (start, most) = (Some(Start::of(&mut end)), 0);
                say(&())?;
            }
            Ok(Order::End) => {
                let figures = start.take().map(|start| start.until_now(&end, most));
                say(&figures.unwrap_or_default())?;
            }
            Ok(Order::Connect { .. }) | Err(TryRecvError::Empty) => {}
            Err(TryRecvError::Disconnected) => return Ok(ExitCode::SUCCESS),
        }
        for _ in 0..STEPS {
            if !end.step().map_err(failure)? {
                std::thread::yield_now();
            }
        }
        let now = Instant::now();
        if now >= look_at {
            look_at = now + LOOK_EVERY;
            most = resident_bytes().max(most);
        }
    }
}

fn say(answer: &impl Serialize) -> Result<(), Problem> {
    let text = serde_json::to_string(answer).map_err(|e| Problem::plain(e.to_string()))?;
    writeln!(std::io::stdout(), "{text}")
        .map_err(|e| Problem::plain(format!("nobody listens: {e}")))
}

/// Reads orders, until standard input ends or has an invalid one.
fn orders() -> Receiver<Order> {
    let (tell, hear) = channel();
    std::thread::spawn(move || {
        for line in std::io::stdin().lock().lines() {
            let Some(order) = line.ok().and_then(|line| serde_json::from_str(&line).ok()) else {
                return;
            };
            if tell.send(order).is_err() {
                return;
            }
        }
    });
    hear
}
