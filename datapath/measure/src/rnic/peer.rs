//! A responder in another process, controlled by lines of JSON on its standard input.

use super::figures::{EndFigures, Start};
use super::line::FarEnd;
use super::{Error, LOOK_EVERY, STEPS};
use crate::pinning;
use longhaul_datapath::{End, Introduction, Role, TransferConfig, resident_bytes};
use longhaul_port::Port;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::io::{BufRead as _, BufReader, Write as _};
use std::process::{Child as Process, ChildStdout, Command, Stdio};
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
    /// Starts the responder's process.
    pub fn start(mut command: Command) -> Result<Self, Error> {
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut process = pinning::start_unpinned(&mut command).map_err(Error::StartResponder)?;
        let answers = process.stdout.take().map(BufReader::new).ok_or(Error::NoOutput)?;
        Ok(Child { process, answers })
    }

    fn tell(&mut self, order: &Order) -> Result<(), Error> {
        let text = serde_json::to_string(order).map_err(Error::Write)?;
        let stdin = self.process.stdin.as_mut();
        let told = stdin.map(|stdin| writeln!(stdin, "{text}"));
        match told {
            Some(Ok(())) => Ok(()),
            _ => Err(self.ended()),
        }
    }

    fn hear<A: DeserializeOwned>(&mut self) -> Result<A, Error> {
        let mut line = String::new();
        match self.answers.read_line(&mut line) {
            Ok(read) if read > 0 => serde_json::from_str(&line).map_err(Error::Answer),
            _ => Err(self.ended()),
        }
    }

    fn ended(&mut self) -> Error {
        Error::ResponderEnded(self.process.wait())
    }
}

impl FarEnd for Child {
    fn introduce(&mut self, requester: &Introduction) -> Result<Introduction, Error> {
        let Hello { qpns, rkey } = self.hear()?;
        self.tell(&Order::Connect { qpns: requester.qpns.clone(), rkey: requester.rkey })?;
        Ok(Introduction { qpns, rkey })
    }

    fn step(&mut self) -> Result<bool, Error> {
        Ok(false)
    }

    fn begin(&mut self) -> Result<(), Error> {
        self.tell(&Order::Begin)?;
        // Wait for the reply, because messages before it would not be counted.
        self.hear()
    }

    fn end(&mut self) -> Result<EndFigures, Error> {
        self.tell(&Order::End)?;
        self.hear()
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
pub fn serve<P: Port>(port: P, config: TransferConfig) -> Result<(), Error> {
    let mut end = End::new(Role::Responder, config, port)?;
    let Introduction { qpns, rkey } = end.introduction();
    say(&Hello { qpns, rkey })?;
    let orders = orders();
    // Packets that arrive before the queue pairs are connected would be lost.
    match orders.recv() {
        Ok(Order::Connect { qpns, rkey }) => {
            end.connect(&Introduction { qpns, rkey })?;
        }
        _ => return Err(Error::NoRequester),
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
            Err(TryRecvError::Disconnected) => return Ok(()),
        }
        for _ in 0..STEPS {
            if !end.step()? {
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

fn say(answer: &impl Serialize) -> Result<(), Error> {
    let text = serde_json::to_string(answer).map_err(Error::Write)?;
    writeln!(std::io::stdout(), "{text}").map_err(Error::NobodyListens)
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
