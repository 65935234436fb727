//! Tests over real sockets, on loopback addresses of this machine.

mod back_pressure;
mod buffer;
mod captures;
mod configuration;
mod exchange;
mod hostile;
mod refused;
mod wire;

use std::net::IpAddr;
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::{Duration, Instant};

use longhaul_port::Port;
use longhaul_units::{Psn, Qpn};
use longhaul_wire::{Bth, Head, MacAddr, Opcode, Packet, Path, PathTemplate, Split, icrc, split};

use crate::{UdpConfig, UdpPort};

/// An IPv4 loopback address that no other test of this process uses; processes differ in their
/// third byte.
fn own_ipv4() -> IpAddr {
    static NEXT: AtomicU8 = AtomicU8::new(1);
    let process = std::process::id();
    IpAddr::from([
        127,
        (process >> 8) as u8 | 1,
        process as u8,
        NEXT.fetch_add(1, Ordering::Relaxed),
    ])
}

fn port(address: IpAddr) -> UdpPort {
    UdpPort::bind(&UdpConfig::new("test", address)).unwrap()
}

fn port_without_offload(address: IpAddr) -> UdpPort {
    UdpPort::bind(&UdpConfig { offload: false, ..UdpConfig::new("test", address) }).unwrap()
}

/// Two ports on own addresses.
fn pair() -> ([IpAddr; 2], UdpPort, UdpPort) {
    let addresses = [own_ipv4(), own_ipv4()];
    (addresses, port(addresses[0]), port(addresses[1]))
}

fn path(from: IpAddr, to: IpAddr) -> Path {
    Path {
        source_mac: MacAddr([2, 0, 0, 0, 0, 1]),
        destination_mac: MacAddr([2, 0, 0, 0, 0, 2]),
        vlan: None,
        source_ip: from,
        destination_ip: to,
        traffic_class: 0,
        hop_limit: 64,
        flow_label: 0,
        udp_source_port: 4791,
    }
}

/// A SEND MIDDLE with this number as PSN, a payload of `payload_bytes` derived from it, and its
/// ICRC.
fn frame_on(path: &Path, number: u32, payload_bytes: usize) -> Vec<u8> {
    frame_of(&PathTemplate::new(path), number, payload_bytes)
}

fn frame_of(template: &PathTemplate, number: u32, payload_bytes: usize) -> Vec<u8> {
    let mut head = Head::begin(
        template,
        &Bth::new(Opcode::RC_SEND_MIDDLE, Qpn::new(0x1234), Psn::new(number)),
    );
    let pad = head.finish(template, payload_bytes);
    let mut frame = head.bytes().to_vec();
    frame.extend((0..payload_bytes).map(|at| (number as usize * 37 + at) as u8));
    frame.resize(frame.len() + usize::from(pad) + 4, 0);
    set_icrc(&mut frame);
    frame
}

fn expected_icrc(frame: &[u8]) -> [u8; 4] {
    let found = split(frame, frame.len()).unwrap();
    let Split::Roce { layout, .. } = found else { panic!("{found:?}") };
    assert_eq!(found.end(), Some(frame.len()));
    icrc::of_frame(frame, &layout, frame.len())
}

fn set_icrc(frame: &mut [u8]) {
    let icrc = expected_icrc(frame);
    *frame.last_chunk_mut().unwrap() = icrc;
}

#[track_caller]
fn check_icrc(frame: &[u8]) {
    assert_eq!(frame.last_chunk(), Some(&expected_icrc(frame)), "ICRC");
}

fn psn(frame: &[u8]) -> u32 {
    Packet::parse(frame).unwrap().unwrap().psn().get()
}

/// BTH to the byte before the ICRC.
fn body(frame: &[u8]) -> &[u8] {
    let Ok(Split::Roce { layout, .. }) = split(frame, frame.len()) else { panic!("not RoCEv2") };
    &frame[layout.bth..frame.len() - 4]
}

#[track_caller]
fn give(port: &mut UdpPort, frame: &[u8]) {
    assert!(port.transmit(frame.len(), &mut |slot| slot.copy_from_slice(frame)).unwrap());
}

/// Runs `turn` until it returns a value, for a minute at most.
#[track_caller]
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

/// Receives `count` frames, `at_a_time` in a call.
#[track_caller]
fn take(port: &mut UdpPort, count: usize, at_a_time: usize) -> Vec<Vec<u8>> {
    let mut frames = Vec::new();
    until("all frames are there", || {
        let before = frames.len();
        let received = port.receive(at_a_time, &mut |frame| frames.push(frame.to_vec())).unwrap();
        assert_eq!(received, frames.len() - before);
        assert!(received <= at_a_time);
        (frames.len() >= count).then_some(())
    });
    assert_eq!(frames.len(), count);
    frames
}
