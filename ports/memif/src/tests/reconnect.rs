//! Tests of peers that disconnect and reconnect.

use longhaul_port::{LinkState, Port};

use super::*;

fn until_down(port: &mut MemifPort) {
    until("the port is down", || (port.service().unwrap() == LinkState::Down).then_some(()));
}

#[test]
fn a_master_outlives_its_slaves() {
    let path = TestPath::new();
    let mut master = MemifPort::master(&path, 0, config(3, 300)).unwrap();
    for round in 0..5 {
        let mut slave = MemifPort::slave(&path, 0, config(3, 300)).unwrap();
        bring_up(&mut [&mut master, &mut slave]);
        send(&mut slave, 60, round);
        assert_eq!(master.receive(8, &mut |frame| check_pattern(frame, round)).unwrap(), 1);
        send(&mut master, 60, round);
        assert_eq!(slave.receive(8, &mut |frame| check_pattern(frame, round)).unwrap(), 1);
        drop(slave);
        until_down(&mut master);
        assert_eq!(master.last_disconnect(), Some("the interface is gone"));
    }
    assert_eq!(master.counters().link_ups, 5);
    assert_eq!(master.counters().rx_frames, 5);
}

#[test]
fn a_slave_finds_its_master_again() {
    let path = TestPath::new();
    let mut slave = MemifPort::slave(&path, 0, config(3, 300)).unwrap();
    assert_eq!(slave.service().unwrap(), LinkState::Down);
    assert!(slave.last_disconnect().unwrap().starts_with("connecting: "));
    for round in 0..3 {
        let mut master = MemifPort::master(&path, 0, config(3, 300)).unwrap();
        bring_up(&mut [&mut master, &mut slave]);
        send(&mut slave, 60, round);
        assert_eq!(master.receive(8, &mut |frame| check_pattern(frame, round)).unwrap(), 1);
        drop(master);
        until_down(&mut slave);
    }
}

#[test]
fn the_last_frames_of_a_departed_peer_are_received() {
    for slave_leaves in [true, false] {
        let path = TestPath::new();
        let (master, slave) = pair(&path, &config(3, 300));
        let (mut leaves, mut stays) = if slave_leaves { (slave, master) } else { (master, slave) };
        for number in 0..5 {
            send(&mut leaves, 60, number);
        }
        drop(leaves);
        until_down(&mut stays);
        let mut next = 0;
        assert!(stays.arm().unwrap(), "frames wait, so there is nothing to sleep for");
        while stays
            .receive(2, &mut |frame| {
                check_pattern(frame, next);
                next += 1;
            })
            .unwrap()
            > 0
        {}
        assert_eq!(next, 5);
        assert!(!stays.arm().unwrap());
    }
}

#[test]
fn a_slave_that_stays_silent_loses_its_place() {
    let path = TestPath::new();
    let mut master = MemifPort::master(&path, 0, config(3, 300)).unwrap();
    // Connections that never name an interface do not block a later slave.
    let idle: Vec<_> = (0..80)
        .map(|_| {
            let socket = crate::socket::connect_to(path.as_ref());
            std::thread::sleep(Duration::from_millis(2));
            master.service().unwrap();
            socket
        })
        .collect();
    let mut slave = MemifPort::slave(&path, 0, config(3, 300)).unwrap();
    bring_up(&mut [&mut master, &mut slave]);
    drop(idle);
}
