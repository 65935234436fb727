//! Tests over real sockets and real shared memory, all within this process.

mod data_path;
mod hostile_master;
mod hostile_slave;
mod listener;
mod raw_peer;
mod reconnect;

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use longhaul_port::{LinkState, Port};

use crate::{MemifConfig, MemifPort};

/// A socket path for one test, removed at the end.
struct TestPath(PathBuf);

impl TestPath {
    fn new() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let name = format!("longhaul-memif-{}-{number}.sock", std::process::id());
        Self(std::env::temp_dir().join(name))
    }
}

impl AsRef<Path> for TestPath {
    fn as_ref(&self) -> &Path {
        &self.0
    }
}

impl Drop for TestPath {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

fn config(ring_size_log2: u8, frame_bytes_max: usize) -> MemifConfig {
    MemifConfig { ring_size_log2, frame_bytes_max, ..MemifConfig::new("test") }
}

/// Runs `turn` until it returns a value, for at most a minute, since the machine may be busy.
fn until<T>(what: &str, mut turn: impl FnMut() -> Option<T>) -> T {
    let start = Instant::now();
    loop {
        if let Some(value) = turn() {
            return value;
        }
        assert!(start.elapsed() < Duration::from_secs(60), "still waiting until {what}");
        std::thread::yield_now();
    }
}

fn bring_up(ports: &mut [&mut MemifPort]) {
    until("all ports are up", || {
        let mut up = true;
        for port in ports.iter_mut() {
            up &= port.service().unwrap() == LinkState::Up;
        }
        up.then_some(())
    });
}

/// A connected master and slave.
fn pair(path: &TestPath, config: &MemifConfig) -> (MemifPort, MemifPort) {
    let mut master = MemifPort::master(path, 0, config.clone()).unwrap();
    let mut slave = MemifPort::slave(path, 0, config.clone()).unwrap();
    bring_up(&mut [&mut master, &mut slave]);
    (master, slave)
}

/// Fills a frame with bytes that depend on its number, and with the number itself if it fits.
fn pattern(frame: &mut [u8], number: u64) {
    for (at, byte) in frame.iter_mut().enumerate() {
        *byte = (number as usize).wrapping_mul(37).wrapping_add(at) as u8;
    }
    frame[..8].copy_from_slice(&number.to_le_bytes());
}

fn check_pattern(frame: &[u8], number: u64) {
    let mut expected = vec![0; frame.len()];
    pattern(&mut expected, number);
    assert!(frame == expected, "frame {number} differs");
}

fn send(port: &mut MemifPort, len: usize, number: u64) {
    assert!(port.transmit(len, &mut |frame| pattern(frame, number)).unwrap());
    port.flush().unwrap();
}
