//! Tests of a slave against masters that violate the protocol, one rule at a time.

use std::sync::Arc;

use longhaul_port::{LinkState, Port, PortError};

use super::raw_peer::{detail, next_message};
use super::*;
use crate::control::Control;
use crate::handshake::hello;
use crate::message::{AddRing, Message};
use crate::region::Region;
use crate::ring::{FLAG_NEXT, Ring};
use crate::socket::ListeningSocket;

const SIZE_LOG2: u8 = 3;
const FRAME_BYTES: usize = 300;

/// A master made of raw parts, connected.
struct RawMaster {
    control: Control,
    s2m: Ring,
    m2s: Ring,
}

fn accept(socket: &ListeningSocket, slave: &mut MemifPort) -> Control {
    until("the slave connects", || {
        slave.service().unwrap();
        socket.accept().unwrap().map(Control::new)
    })
}

impl RawMaster {
    fn connected(socket: &ListeningSocket, slave: &mut MemifPort) -> Self {
        let control = accept(socket, slave);
        control.send(&hello(), None).unwrap();
        let mut region = None;
        let mut rings = Vec::new();
        loop {
            let (message, fd, error) = next_message(slave, &control);
            assert!(error.is_none(), "{error:?}");
            match message {
                Message::Init(init) => assert_eq!(init.id, 3),
                Message::AddRegion { index: 0, bytes } => {
                    region = Some(Arc::new(Region::from_peer(fd.unwrap(), bytes).unwrap()));
                }
                Message::AddRing(AddRing { offset, ring_size_log2, .. }) => {
                    let region = region.as_ref().unwrap();
                    rings.push(Ring::new(region, offset, ring_size_log2).unwrap());
                }
                Message::Connect { .. } => break,
                other => panic!("unexpected {}", other.name()),
            }
            control.send(&Message::Ack, None).unwrap();
        }
        let (m2s, s2m) = (rings.pop().unwrap(), rings.pop().unwrap());
        s2m.check_cookie().unwrap();
        m2s.check_cookie().unwrap();
        assert_eq!(m2s.head(), 0, "buffers are posted only once the master is connected");
        // Some masters reset the indices here.
        for ring in [&s2m, &m2s] {
            ring.publish_head(0);
            ring.publish_tail(0);
        }
        control.send(&Message::Connected { name: "raw".to_owned() }, None).unwrap();
        bring_up(&mut [slave]);
        Self { control, s2m, m2s }
    }
}

fn setup(path: &TestPath) -> (ListeningSocket, MemifPort) {
    let socket = ListeningSocket::bind(path.as_ref()).unwrap();
    let slave = MemifPort::slave(path, 3, config(SIZE_LOG2, FRAME_BYTES)).unwrap();
    (socket, slave)
}

/// A connected master runs `break_rule`; then `port_call` must end the connection for `reason`, and
/// the slave must reconnect.
fn caught(
    reason: &str,
    break_rule: impl FnOnce(&RawMaster),
    port_call: impl FnOnce(&mut MemifPort) -> Result<(), PortError>,
) {
    let path = TestPath::new();
    let (socket, mut slave) = setup(&path);
    let master = RawMaster::connected(&socket, &mut slave);
    break_rule(&master);
    let told = detail(port_call(&mut slave).unwrap_err());
    assert!(told.contains(reason), "{told:?} instead of {reason:?}");
    assert_eq!(slave.link_state(), LinkState::Down);
    let (answer, ..) = next_message(&mut slave, &master.control);
    assert_eq!(answer.name(), "DISCONNECT");
    drop(master);
    RawMaster::connected(&socket, &mut slave);
    assert_eq!(slave.counters().link_ups, 2);
}

fn receive(port: &mut MemifPort) -> Result<(), PortError> {
    port.receive(8, &mut |_| panic!("a frame came of it")).map(|_| ())
}

#[test]
fn tail_beyond_what_was_posted() {
    caught("receive ring tail 9", |master| master.m2s.publish_tail(9), receive);
    caught("receive ring tail 65535", |master| master.m2s.publish_tail(u16::MAX), receive);
}

#[test]
fn frame_longer_than_its_buffer() {
    let deliver = |length| {
        move |master: &RawMaster| {
            master.m2s.write_length(0, 0, 0, length);
            master.m2s.publish_tail(1);
        }
    };
    caught("frame of 301 bytes in a buffer of 300 bytes", deliver(301), receive);
    caught("frame of 4294967295 bytes", deliver(u32::MAX), receive);
}

#[test]
fn chain_without_end() {
    caught(
        "a chain fills the ring of 8",
        |master| {
            for index in 0..8 {
                master.m2s.write_length(index, FLAG_NEXT, 0, 10);
            }
            master.m2s.publish_tail(8);
        },
        receive,
    );
}

#[test]
fn tail_beyond_what_was_sent() {
    let fill_ring = |port: &mut MemifPort| {
        for _ in 0..9 {
            port.transmit(60, &mut |frame| frame.fill(1))?;
            port.flush()?;
        }
        Ok(())
    };
    caught("transmit ring tail 9", |master| master.s2m.publish_tail(9), fill_ring);
    caught("transmit ring tail 65535", |master| master.s2m.publish_tail(u16::MAX), fill_ring);
}

#[test]
fn regions_and_offsets_of_the_master_are_not_used() {
    let path = TestPath::new();
    let (socket, mut slave) = setup(&path);
    let master = RawMaster::connected(&socket, &mut slave);
    let mut descriptor = master.m2s.descriptor(0);
    assert_eq!(descriptor.length as usize, FRAME_BYTES, "{descriptor:?}");
    descriptor.region = 7;
    descriptor.offset = u32::MAX;
    descriptor.length = 60;
    master.m2s.write(0, descriptor);
    master.m2s.publish_tail(1);
    assert_eq!(slave.receive(8, &mut |frame| assert_eq!(frame, [0; 60])).unwrap(), 1);
}

#[test]
fn chained_frames_arrive_in_one_piece() {
    let path = TestPath::new();
    let (socket, mut slave) = setup(&path);
    let master = RawMaster::connected(&socket, &mut slave);
    for turn in 0..20u16 {
        master.m2s.write_length(2 * turn, FLAG_NEXT, 0, 100);
        master.m2s.write_length(2 * turn + 1, 0, 0, 50);
        master.m2s.publish_tail(2 * turn + 2);
        assert_eq!(slave.receive(8, &mut |frame| assert_eq!(frame, [0; 150])).unwrap(), 1);
        assert_eq!(master.m2s.head(), 2 * turn + 10);
        assert_eq!(master.m2s.descriptor(2 * turn).length as usize, FRAME_BYTES);
        assert_eq!(master.m2s.descriptor(2 * turn).flags, 0);
    }
}

/// A master that sends `messages` to a fresh slave must be disconnected for `reason`.
fn refused(reason: &str, messages: &[Message]) {
    let path = TestPath::new();
    let (socket, mut slave) = setup(&path);
    let control = accept(&socket, &mut slave);
    for message in messages {
        control.send(message, None).unwrap();
    }
    let told = until("the slave objects", || slave.service().err());
    assert!(detail(told).contains(reason), "instead of {reason:?}");
    drop(control);
    RawMaster::connected(&socket, &mut slave);
}

#[test]
fn unknown_version() {
    let Message::Hello(mut greeting) = hello() else { panic!("not a HELLO") };
    greeting.version_min = 0x300;
    greeting.version_max = 0x400;
    refused("memif versions 0x300 to 0x400 without 0x200", &[Message::Hello(greeting)]);
}

#[test]
fn messages_out_of_order() {
    let connected = || Message::Connected { name: "x".to_owned() };
    refused("unexpected ACK", &[Message::Ack]);
    refused("unexpected CONNECTED", &[connected()]);
    refused("unexpected CONNECTED", &[hello(), connected()]);
    refused("unexpected HELLO", &[hello(), hello()]);
    let region = Message::AddRegion { index: 0, bytes: 4096 };
    refused("unexpected ADD_REGION", &[hello(), region]);
    let acks = vec![Message::Ack; 5];
    refused("unexpected ACK", &[vec![hello()], acks].concat());
}

#[test]
fn a_smaller_ring_limit_is_obeyed() {
    let path = TestPath::new();
    let (socket, mut slave) = setup(&path);
    let control = accept(&socket, &mut slave);
    let Message::Hello(mut greeting) = hello() else { panic!("not a HELLO") };
    greeting.ring_size_log2_max = 1;
    control.send(&Message::Hello(greeting), None).unwrap();
    for expected in ["INIT", "ADD_REGION"] {
        assert_eq!(next_message(&mut slave, &control).0.name(), expected);
        control.send(&Message::Ack, None).unwrap();
    }
    let (message, ..) = next_message(&mut slave, &control);
    let Message::AddRing(ring) = message else { panic!("{} for ADD_RING", message.name()) };
    assert_eq!(ring.ring_size_log2, 1);
}
