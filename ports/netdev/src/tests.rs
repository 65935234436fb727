//! Tests of ports on real interfaces, in network namespaces that vanish with the threads that
//! created them, also on panic.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::process::Command;
use std::sync::mpsc::{Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use longhaul_namespace::{in_namespace, sh};
use longhaul_port::{LinkState, Port};

mod handover;
mod interfaces;
mod packet;
mod streams;
mod tap;

/// An EtherType for experiments, to which no kernel responds.
const ETHERTYPE: [u8; 2] = [0x88, 0xb5];
const PATIENCE: Duration = Duration::from_secs(60);

type Job = Box<dyn FnOnce() + Send>;

/// A thread in its own network namespace.
struct Host {
    /// Thread id, which identifies the namespace.
    thread: i32,
    jobs: Option<Sender<Job>>,
    running: Option<JoinHandle<()>>,
}

impl Host {
    fn new() -> Self {
        let (jobs, waiting) = channel::<Job>();
        let (answer, answered) = channel();
        let running = std::thread::spawn(move || {
            longhaul_namespace::enter().unwrap();
            // SAFETY: takes nothing.
            answer.send(unsafe { libc::gettid() }).unwrap();
            waiting.into_iter().for_each(|job| job());
        });
        Self { thread: answered.recv().unwrap(), jobs: Some(jobs), running: Some(running) }
    }

    /// Runs `work` in the namespace and waits for it; propagates its panic.
    fn run<R: Send + 'static>(&self, work: impl FnOnce() -> R + Send + 'static) -> R {
        let (answer, answered) = channel();
        let job: Job = Box::new(move || drop(answer.send(catch_unwind(AssertUnwindSafe(work)))));
        self.jobs.as_ref().unwrap().send(job).unwrap();
        answered.recv().unwrap().unwrap_or_else(|panic| resume_unwind(panic))
    }

    /// Runs lines of commands in the namespace.
    fn sh(&self, lines: &str) {
        let lines = lines.to_owned();
        self.run(move || sh(&lines));
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        self.jobs = None;
        let _ = self.running.take().map(JoinHandle::join);
    }
}

/// Runs lines of commands in the namespace of the calling thread, and returns whether that
/// succeeded.
fn may_sh(lines: &str) -> bool {
    Command::new("sh").args(["-e", "-c", lines]).output().unwrap().status.success()
}

/// A frame for experiments, of `len` bytes.
fn frame(len: usize, seed: u8) -> Vec<u8> {
    let mut frame: Vec<u8> = (0..len).map(|at| (at as u8).wrapping_mul(7) ^ seed).collect();
    frame[..12].copy_from_slice(&[2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2]);
    frame[12..14].copy_from_slice(&ETHERTYPE);
    frame
}

/// The frame with a VLAN tag.
fn tagged(frame: &[u8], tag: [u8; 4]) -> Vec<u8> {
    [&frame[..12], &tag, &frame[12..]].concat()
}

fn send(port: &mut impl Port, frame: &[u8]) {
    assert!(port.transmit(frame.len(), &mut |slot| slot.copy_from_slice(frame)).unwrap());
    port.flush().unwrap();
}

/// Receives waiting frames, and returns those of experiments.
fn receive(port: &mut impl Port) -> Vec<Vec<u8>> {
    let mut frames = Vec::new();
    port.receive(64, &mut |frame| {
        let at = if frame[12] == 0x81 || frame[12..14] == [0x88, 0xa8] { 16 } else { 12 };
        if frame[at..at + 2] == ETHERTYPE {
            frames.push(frame.to_vec());
        }
    })
    .unwrap();
    frames
}

/// Waits for `count` frames of experiments.
fn receive_all(port: &mut impl Port, count: usize) -> Vec<Vec<u8>> {
    let mut frames = Vec::new();
    until("frames", || {
        port.service().unwrap();
        frames.append(&mut receive(port));
        frames.len() >= count
    });
    frames
}

fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let start = Instant::now();
    while !is_so() {
        assert!(start.elapsed() < PATIENCE, "no {what} in {PATIENCE:?}");
        std::thread::sleep(Duration::from_micros(100));
    }
}

fn await_link(port: &mut impl Port, state: LinkState) {
    until("link change", || port.service().unwrap() == state);
    assert_eq!(port.link_state(), state);
    assert_eq!(
        port.last_disconnect().is_none(),
        state == LinkState::Up,
        "{:?}",
        port.last_disconnect()
    );
}

/// Services the port until nothing is left to report.
fn settle(port: &mut impl Port) {
    until("rest", || {
        port.service().unwrap();
        receive(port);
        let is_awake = port.arm().unwrap() || sleep_on(&mut [port], Duration::from_millis(50));
        port.disarm();
        !is_awake
    });
}

/// Sleeps until a descriptor is readable, like a driver; `false` on timeout.
fn sleep_on(ports: &mut [&mut dyn Port], limit: Duration) -> bool {
    let mut fds = Vec::new();
    for port in ports {
        for fd in &port.descriptors() {
            fds.push(libc::pollfd { fd: *fd, events: libc::POLLIN, revents: 0 });
        }
    }
    // SAFETY: a live, exclusive slice whose length is given.
    let ready = unsafe { libc::poll(fds.as_mut_ptr(), fds.len() as _, limit.as_millis() as _) };
    ready > 0
}
