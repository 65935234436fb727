//! Tests of ports on veth pairs, in network namespaces that vanish with the threads that created
//! them.

use std::process::Command;
use std::time::{Duration, Instant};

use longhaul_namespace::{sh, veth};
use longhaul_netdev::{PacketConfig, PacketPort};
use longhaul_port::{LinkState, Port};

use crate::{Mode, XdpConfig, XdpError, XdpPort};

mod frames;
mod handover;
mod interfaces;
mod shared;
mod steering;

/// An EtherType for experiments, to which no kernel responds.
const ETHERTYPE: [u8; 2] = [0x88, 0xb5];
const PATIENCE: Duration = Duration::from_secs(60);

/// Runs `test` in its own namespace, if that and AF_XDP are available.
fn in_namespace(test: impl FnOnce() + Send) {
    if crate::socket::XdpSocket::new().is_err() {
        return longhaul_namespace::skip("this test needs root and AF_XDP");
    }
    longhaul_namespace::in_namespace(test);
}

fn open(interface: &str, mode: Mode) -> XdpPort {
    let config = XdpConfig {
        mode,
        receive_frames: Some(256),
        transmit_frames: 256,
        ..XdpConfig::new(interface)
    };
    let deadline = Instant::now() + PATIENCE;
    let mut port = loop {
        match XdpPort::open(&config) {
            Ok(port) => break port,
            // A closed port's descriptors live on in a child that another test has forked, until
            // that executes its program.
            Err(XdpError::ProgramThere { .. }) if Instant::now() < deadline => {
                std::thread::sleep(Duration::from_millis(10));
            }
            Err(error) => panic!("{error}"),
        }
    };
    await_link(&mut port, LinkState::Up);
    port
}

fn open_packet(interface: &str) -> PacketPort {
    let mut port = PacketPort::open(&PacketConfig::new(interface)).unwrap();
    await_link(&mut port, LinkState::Up);
    port
}

/// A frame for experiments, of `len` bytes.
fn frame(len: usize, seed: u8) -> Vec<u8> {
    let mut frame: Vec<u8> =
        (0..len).map(|at| (at as u8).wrapping_mul(7) ^ (at >> 8) as u8 ^ seed).collect();
    frame[..12].copy_from_slice(&[2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2]);
    frame[12..14].copy_from_slice(&ETHERTYPE);
    frame
}

fn send(port: &mut impl Port, frame: &[u8]) {
    assert!(port.transmit(frame.len(), &mut |slot| slot.copy_from_slice(frame)).unwrap());
    port.flush().unwrap();
}

/// Receives all waiting frames except the kernel's.
fn receive(port: &mut impl Port) -> Vec<Vec<u8>> {
    let mut frames = Vec::new();
    port.receive(64, &mut |frame| frames.push(frame.to_vec())).unwrap();
    frames
}

/// Waits for `count` frames.
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

/// Sleeps until a descriptor is readable, like a driver; `false` on timeout.
fn sleep_on(port: &mut impl Port, limit: Duration) -> bool {
    let fd = |fd: &i32| libc::pollfd { fd: *fd, events: libc::POLLIN, revents: 0 };
    let mut fds: Vec<_> = port.descriptors().iter().map(fd).collect();
    // SAFETY: a live, exclusive slice whose length is given.
    let ready = unsafe { libc::poll(fds.as_mut_ptr(), fds.len() as _, limit.as_millis() as _) };
    ready > 0
}
