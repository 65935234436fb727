//! Tests of ports that move to another process.

use longhaul_port::{Handover, LinkState, Port};

use super::*;

fn config() -> XdpConfig {
    XdpConfig { receive_frames: Some(256), transmit_frames: 256, ..XdpConfig::new("lhb") }
}

/// Counts the frames of experiments that arrive until there are `count`.
fn await_frames(port: &mut impl Port, count: usize) {
    let deadline = Instant::now() + PATIENCE;
    let mut came = 0;
    while came < count {
        let left = count - came;
        let mut each = |frame: &[u8]| came += usize::from(frame[12..14] == ETHERTYPE);
        port.receive(left, &mut each).unwrap();
        assert!(Instant::now() < deadline, "{came} of {count}");
    }
    assert_eq!(came, count);
}

fn send(port: &mut impl Port) {
    let deadline = Instant::now() + PATIENCE;
    while port.service().unwrap() == LinkState::Down {
        assert!(Instant::now() < deadline, "no link");
    }
    let fill = &mut |frame: &mut [u8]| {
        frame.fill(2);
        frame[12..14].copy_from_slice(&ETHERTYPE);
    };
    assert!(port.transmit(100, fill).unwrap());
    port.flush().unwrap();
}

#[test]
fn it_continues_with_the_frames_that_wait() {
    in_namespace(|| {
        sh("ip link add lha type veth peer name lhb; ip link set lha up; ip link set lhb up");
        let mut a = PacketPort::open(&PacketConfig::new("lha")).unwrap();
        let mut port = XdpPort::open(&config()).unwrap();
        // More frames than each ring has entries.
        for _ in 0..10 {
            (0..50).for_each(|_| send(&mut a));
            await_frames(&mut port, 10);
            assert!(port.is_at_rest());
            let handover = port.hand_over().unwrap();
            port.give_away();
            drop(port);
            port = XdpPort::take_over_queues(&config(), vec![handover]).unwrap().remove(0);
            await_frames(&mut port, 40);
            (0..50).for_each(|_| send(&mut port));
            await_frames(&mut a, 50);
        }
        assert_eq!(port.counters().peer_violations, 0);
    });
}

#[test]
fn what_is_no_such_port_is_refused() {
    in_namespace(|| {
        sh("ip link add lha type veth peer name lhb; ip link set lha up; ip link set lhb up");
        let mut port = XdpPort::open(&config()).unwrap();
        let mut damaged = |damage: fn(&mut Handover)| {
            let mut handover = port.hand_over().unwrap();
            damage(&mut handover);
            handover
        };
        for handover in [
            damaged(|it| it.descriptors.truncate(1)),
            damaged(|it| it.descriptors.swap(0, 1)),
            damaged(|it| it.numbers.clear()),
            damaged(|it| it.numbers[1] = 64),
            damaged(|it| it.numbers[2] = u64::MAX),
            damaged(|it| it.numbers = vec![1, 1, 1, 256]),
        ] {
            let refusal = XdpPort::take_over_queues(&config(), vec![handover]).err();
            assert!(matches!(refusal, Some(XdpError::NotThisPort { .. })), "{refusal:?}");
        }
        let other = XdpConfig { receive_frames: Some(512), ..config() };
        let refusal = XdpPort::take_over_queues(&other, vec![damaged(|_| ())]).err();
        assert!(matches!(refusal, Some(XdpError::NotThisPort { .. })), "{refusal:?}");
    });
}
