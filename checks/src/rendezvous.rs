//! Two processes of a test program that tell each other where they are, over TCP.

use serde_json::Value;
use std::error::Error;
use std::io::{BufRead, BufReader, Write};
use std::net::TcpStream;
use std::thread::sleep;
use std::time::{Duration, Instant};

type Fault = Box<dyn Error>;

/// A line of JSON at a time, each way.
pub struct Rendezvous {
    stream: TcpStream,
    lines: BufReader<TcpStream>,
}

impl Rendezvous {
    /// Over a connection on which nothing has been said. Neither waits longer than `patience` for
    /// the other's line.
    ///
    /// # Errors
    /// Those of the connection.
    pub fn over(stream: TcpStream, patience: Duration) -> Result<Self, Fault> {
        stream.set_read_timeout(Some(patience))?;
        stream.set_nodelay(true)?;
        Ok(Rendezvous { lines: BufReader::new(stream.try_clone()?), stream })
    }

    /// Connects to the process that listens at `address`, or soon will.
    ///
    /// # Errors
    /// When nobody does within `patience`.
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
    /// When the other one says nothing, or nothing that is JSON.
    pub fn swap(&mut self, ours: &Value) -> Result<Value, Fault> {
        writeln!(self.stream, "{ours}")?;
        let mut line = String::new();
        if self.lines.read_line(&mut line)? == 0 {
            return Err("the other process has gone".into());
        }
        Ok(serde_json::from_str(&line)?)
    }

    /// Waits until the other one has come to the same `step`.
    ///
    /// # Errors
    /// As [`Rendezvous::swap`], and when it is at another one.
    pub fn agree(&mut self, step: &str) -> Result<(), Fault> {
        let theirs = self.swap(&Value::from(step))?;
        if theirs == step {
            Ok(())
        } else {
            Err(format!("at {step:?} while the other is at {theirs}").into())
        }
    }
}
