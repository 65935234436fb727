//! The TCP connection between the two processes.

use crate::{Fault, Place};
use serde_json::Value;
use std::io::{BufRead, BufReader, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::thread::sleep;
use std::time::{Duration, Instant};

const PATIENCE: Duration = Duration::from_secs(60);

/// A line of JSON at a time, each way.
pub struct Rendezvous {
    stream: TcpStream,
    lines: BufReader<TcpStream>,
}

impl Rendezvous {
    /// Meets the other process; whoever is first waits.
    pub fn meet(place: Place) -> Result<Self, Fault> {
        let stream = if place.server { accept(place.port)? } else { connect(place.port)? };
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.set_nodelay(true)?;
        Ok(Rendezvous { lines: BufReader::new(stream.try_clone()?), stream })
    }

    /// Sends `ours` and waits for the other's.
    pub fn swap(&mut self, ours: &Value) -> Result<Value, Fault> {
        writeln!(self.stream, "{ours}")?;
        let mut line = String::new();
        if self.lines.read_line(&mut line)? == 0 {
            return Err("the other process has gone".into());
        }
        Ok(serde_json::from_str(&line)?)
    }

    /// Waits until the other one has come to the same `step`.
    pub fn agree(&mut self, step: &str) -> Result<(), Fault> {
        let theirs = self.swap(&Value::from(step))?;
        if theirs == step {
            Ok(())
        } else {
            Err(format!("at {step:?} while the other is at {theirs}").into())
        }
    }
}

fn accept(port: u16) -> Result<TcpStream, Fault> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, port))?;
    Ok(listener.accept()?.0)
}

fn connect(port: u16) -> Result<TcpStream, Fault> {
    let deadline = Instant::now() + PATIENCE;
    loop {
        match TcpStream::connect((Ipv4Addr::LOCALHOST, port)) {
            Ok(stream) => return Ok(stream),
            Err(e) if Instant::now() > deadline => {
                return Err(format!("no server at port {port}: {e}").into());
            }
            Err(_) => sleep(Duration::from_millis(20)),
        }
    }
}
