//! A bench that is both ends of a connection: it starts itself a second time, back to back over
//! shared memory, and the two exchange the numbers of their queue pairs through pipes.

use crate::back_to_back::{CLIENT_IP, SERVER_IP};
use crate::lab::RuntimeDir;
use longhaul_rdma::{Attach, Device, Endpoint, PathSettings, QueuePair, attach};
use longhaul_units::{Psn, Qpn};
use std::io::{self, BufRead, BufReader, Write};
use std::net::IpAddr;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

/// First PSN of every queue pair.
const PSN: u32 = 77;

/// The process at the other end. Dropping it stops it and waits for its exit.
pub struct OtherEnd {
    child: Child,
    to: Option<ChildStdin>,
    from: BufReader<ChildStdout>,
    dir: RuntimeDir,
}

impl OtherEnd {
    /// Starts this program with `arguments`, which tell it that it is the other end.
    ///
    /// # Panics
    /// If it cannot be started.
    pub fn start(arguments: &[&str]) -> Self {
        let dir = RuntimeDir::new();
        let mut child = Command::new(std::env::current_exe().expect("this program"))
            .args(arguments)
            .env(attach::ENV_SOCKET, dir.path().join("memif"))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("the process at the other end");
        let to = child.stdin.take();
        let from = BufReader::new(child.stdout.take().expect("a pipe"));
        OtherEnd { child, to, from, dir }
    }

    /// Device of this end.
    ///
    /// # Panics
    /// If there is none.
    pub fn device(&self) -> Device {
        device(&self.dir.path().join("memif").display().to_string(), "slave", CLIENT_IP)
    }

    /// Exchanges numbers, one line each, and connects `mine` to the other end's queue pairs.
    ///
    /// # Panics
    /// If the other end exits, or has created other queue pairs.
    pub fn connect(&mut self, mine: &[QueuePair]) {
        writeln!(self.to.as_mut().expect("a pipe"), "{}", numbers(mine))
            .expect("our numbers are sent");
        let theirs = self.line();
        connect(mine, &theirs, SERVER_IP);
    }

    /// The next line that the other end prints.
    ///
    /// # Panics
    /// If it cannot be read.
    pub fn line(&mut self) -> String {
        line(&mut self.from)
    }
}

impl Drop for OtherEnd {
    fn drop(&mut self) {
        drop(self.to.take());
        let _ = self.child.wait();
    }
}

/// Called by the other end: its device.
///
/// # Panics
/// If there is none.
pub fn device_of_other_end() -> Device {
    device(&std::env::var(attach::ENV_SOCKET).expect("the socket"), "master", SERVER_IP)
}

/// Called by the other end: the counterpart of [`OtherEnd::connect`].
///
/// # Panics
/// Like [`OtherEnd::connect`].
pub fn connect_other_end(mine: &[QueuePair]) {
    connect(mine, &line(&mut io::stdin().lock()), CLIENT_IP);
    println!("{}", numbers(mine));
}

/// Called by the other end: waits until it must stop.
pub fn wait_for_stop() {
    let _ = io::stdin().read_line(&mut String::new());
}

/// A device on shared memory; `role` is "master" or "slave".
///
/// # Panics
/// If it cannot be opened.
pub fn device(socket: &str, role: &str, ip: &str) -> Device {
    let attach = Attach::from_lookup(|name| match name {
        attach::ENV_SOCKET => Some(socket.to_owned()),
        attach::ENV_ROLE => Some(role.to_owned()),
        attach::ENV_IP => Some(ip.to_owned()),
        _ => None,
    });
    Device::open(attach.expect("a valid environment")).expect("a device")
}

fn numbers(qps: &[QueuePair]) -> String {
    qps.iter().map(|qp| qp.qpn().get().to_string()).collect::<Vec<_>>().join(" ")
}

fn line(from: &mut impl BufRead) -> String {
    let mut line = String::new();
    from.read_line(&mut line).expect("a line from the other end");
    line
}

fn connect(mine: &[QueuePair], numbers: &str, ip: &str) {
    let ip: IpAddr = ip.parse().expect("an address");
    let numbers: Vec<u32> =
        numbers.split_whitespace().map(|n| n.parse().expect("a number")).collect();
    assert_eq!(numbers.len(), mine.len());
    for (qp, number) in mine.iter().zip(numbers) {
        let peer = Endpoint { ip, qpn: Qpn::new(number), psn: Psn::new(PSN) };
        qp.connect(Psn::new(PSN), &peer, &PathSettings::default()).expect("connected");
    }
}
