//! Synchronises two processes of a test program over TCP.

use serde_json::Value;
use std::error::Error;
use std::io::{BufRead, BufReader, Write};
use std::net::TcpStream;
use std::thread::sleep;
use std::time::{Duration, Instant};

type Fault = Box<dyn Error>;

/// Exchanges lines of JSON.
pub struct Rendezvous {
    stream: TcpStream,
    lines: BufReader<TcpStream>,
}

impl Rendezvous {
    /// Uses a new connection. Neither end waits longer than `patience` for the other's line.
    ///
    /// # Errors
    /// Errors of the connection.
    pub fn over(stream: TcpStream, patience: Duration) -> Result<Self, Fault> {
        stream.set_read_timeout(Some(patience))?;
        stream.set_nodelay(true)?;
        Ok(Rendezvous { lines: BufReader::new(stream.try_clone()?), stream })
    }

    /// Connects to the process that listens at `address`, or soon will.
    ///
    /// # Errors
    /// If none does within `patience`.
    pub fn at(address: &str, patience: Duration) -> Result<Self, Fault> {
        let deadline = Instant::now() + patience;
        loop {
            match TcpStream::connect(address) {
                Ok(stream) => return Rendezvous::over(stream, patience),
                Err(e) if Instant::now() > deadline => {
                    return Err(format!("nobody at {address}: {e}").into());
                }
                Err(_) => sleep(Duration::from_millis(20)),
            }
        }
    }

    /// Sends `ours` and waits for the other's.
    ///
    /// # Errors
    /// If the other sends nothing, or invalid JSON.
    pub fn swap(&mut self, ours: &Value) -> Result<Value, Fault> {
        writeln!(self.stream, "{ours}")?;
        let mut line = String::new();
        if self.lines.read_line(&mut line)? == 0 {
            return Err("the other process has gone".into());
        }
        Ok(serde_json::from_str(&line)?)
    }

    /// Waits until the other has reached the same `step`.
    ///
    /// # Errors
    /// Like [`Rendezvous::swap`], and if the other is at another step.
    pub fn agree(&mut self, step: &str) -> Result<(), Fault> {
        let theirs = self.swap(&Value::from(step))?;
        if theirs == step {
            Ok(())
        } else {
            Err(format!("at {step:?} while the other is at {theirs}").into())
        }
    }
}
