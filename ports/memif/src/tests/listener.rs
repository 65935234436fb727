//! Tests of one socket with several interfaces, and of the socket file.

use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixListener;

use longhaul_port::{LinkState, Port};

use super::*;
use crate::{Listener, MemifError};

/// Services both until the slave has been refused, and returns the reason.
fn refusal(slave: &mut MemifPort, mut master_turn: impl FnMut()) -> String {
    until("the slave is refused", || {
        master_turn();
        slave.service().unwrap();
        slave.last_disconnect().map(str::to_owned)
    })
}

#[test]
fn one_socket_serves_many_interfaces() {
    let path = TestPath::new();
    let listener = Listener::bind(&path).unwrap();
    let mut masters: Vec<_> = (0..3).map(|id| listener.port(id, config(3, 300)).unwrap()).collect();
    let mut slaves: Vec<_> =
        (0..3).map(|id| MemifPort::slave(&path, id, config(3, 300)).unwrap()).collect();
    bring_up(&mut masters.iter_mut().chain(&mut slaves).collect::<Vec<_>>());
    for (id, slave) in slaves.iter_mut().enumerate() {
        send(slave, 60, id as u64);
    }
    for master in &mut masters {
        let id = u64::from(master.id());
        assert_eq!(master.receive(8, &mut |frame| check_pattern(frame, id)).unwrap(), 1);
    }
    let duplicate = listener.port(1, config(3, 300)).err().unwrap();
    assert!(matches!(duplicate, MemifError::DuplicateId { id: 1, .. }));
    masters.remove(1);
    listener.port(1, config(3, 300)).unwrap();
}

#[test]
fn an_unknown_interface_is_refused() {
    let path = TestPath::new();
    let listener = Listener::bind(&path).unwrap();
    let mut slave = MemifPort::slave(&path, 9, config(3, 300)).unwrap();
    let reason = refusal(&mut slave, || assert!(listener.service().unwrap().is_empty()));
    assert_eq!(reason, "no interface with id 9 on this socket");
}

#[test]
fn a_second_slave_of_the_same_interface_is_refused() {
    let path = TestPath::new();
    let (mut master, _first) = pair(&path, &config(3, 300));
    let mut second = MemifPort::slave(&path, 0, config(3, 300)).unwrap();
    let reason = refusal(&mut second, || {
        master.service().unwrap();
    });
    assert_eq!(reason, "interface id 0 is already connected");
    assert_eq!(master.link_state(), LinkState::Up);
}

/// Some slaves connect once and never again (DPDK's net_memif, unless its link is queried).
#[test]
fn a_slave_that_comes_before_the_port_knows_that_the_former_left_is_taken() {
    let path = TestPath::new();
    let listener = Listener::bind(&path).unwrap();
    let mut master = listener.port(0, config(3, 300)).unwrap();
    let mut first = MemifPort::slave(&path, 0, config(3, 300)).unwrap();
    bring_up(&mut [&mut master, &mut first]);
    drop(first);
    let mut second = MemifPort::slave(&path, 0, config(3, 300)).unwrap();
    // Services only the listener, until it has read the INIT.
    for _ in 0..100 {
        second.service().unwrap();
        assert!(listener.service().unwrap().is_empty());
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
    assert_eq!(second.last_disconnect(), None, "it was refused");
    bring_up(&mut [&mut master, &mut second]);
}

#[test]
fn interfaces_are_made_on_demand() {
    let path = TestPath::new();
    let listener = Listener::bind(&path).unwrap();
    listener.accept_unknown(config(3, 300)).unwrap();
    let mut slaves: Vec<_> =
        [70, 80].map(|id| MemifPort::slave(&path, id, config(3, 300)).unwrap()).into();
    let mut masters: Vec<MemifPort> = Vec::new();
    until("both are up", || {
        masters.extend(listener.service().unwrap());
        let mut up = masters.len() == 2;
        for port in masters.iter_mut().chain(&mut slaves) {
            up &= port.service().unwrap() == LinkState::Up;
        }
        up.then_some(())
    });
    let mut ids: Vec<_> = masters.iter().map(MemifPort::id).collect();
    ids.sort_unstable();
    assert_eq!(ids, [70, 80]);
    // The ports work without the listener, but no port is created on demand any more.
    drop(listener);
    drop(slaves.pop());
    let mut again = MemifPort::slave(&path, 80, config(3, 300)).unwrap();
    bring_up(&mut masters.iter_mut().chain([&mut again]).collect::<Vec<_>>());
    let mut new = MemifPort::slave(&path, 90, config(3, 300)).unwrap();
    let reason = refusal(&mut new, || {
        masters[0].service().unwrap();
    });
    assert_eq!(reason, "no interface with id 90 on this socket");
}

#[test]
fn a_secret_is_checked() {
    let secret = |text: &str| MemifConfig { secret: Some(text.to_owned()), ..config(3, 300) };
    for (slave_config, answer) in [
        (config(3, 300), Some("a secret is required")),
        (secret("sesam"), Some("the secret is wrong")),
        (secret("sesame opens the door!!!"), None),
    ] {
        let path = TestPath::new();
        let mut master = MemifPort::master(&path, 0, secret("sesame opens the door!!!")).unwrap();
        let mut slave = MemifPort::slave(&path, 0, slave_config).unwrap();
        let Some(answer) = answer else {
            bring_up(&mut [&mut master, &mut slave]);
            continue;
        };
        let reason = refusal(&mut slave, || {
            master.service().unwrap();
        });
        assert_eq!(reason, answer);
    }
}

#[test]
fn the_socket_file_is_private_and_temporary() {
    let path = TestPath::new();
    let listener = Listener::bind(&path).unwrap();
    let port = listener.port(0, config(3, 300)).unwrap();
    let mode = std::fs::metadata(&path).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    drop(listener);
    assert!(path.0.exists(), "a port still needs it");
    drop(port);
    assert!(!path.0.exists());
}

#[test]
fn a_stale_socket_is_replaced_and_a_live_one_is_not() {
    let path = TestPath::new();
    drop(UnixListener::bind(&path).unwrap());
    assert!(path.0.exists());
    let _listener = Listener::bind(&path).unwrap();
    let error = Listener::bind(&path).err().unwrap();
    assert!(matches!(error, MemifError::AddressInUse { .. }), "{error}");
    assert!(error.to_string().contains("is in use"), "{error}");
    assert!(path.0.exists(), "the loser leaves the socket alone");
}

#[test]
fn a_live_socket_of_another_type_is_left_alone() {
    let path = TestPath::new();
    let _stream = UnixListener::bind(&path).unwrap();
    let error = Listener::bind(&path).err().unwrap();
    assert!(matches!(error, MemifError::AddressInUse { .. }), "{error}");
}

#[test]
fn a_file_that_is_no_socket_is_left_alone() {
    let path = TestPath::new();
    std::fs::write(&path, "precious").unwrap();
    let error = Listener::bind(&path).err().unwrap();
    assert!(matches!(error, MemifError::NotASocket { .. }), "{error}");
    assert_eq!(std::fs::read_to_string(&path).unwrap(), "precious");
}

#[test]
fn a_successor_keeps_its_socket_file() {
    let path = TestPath::new();
    let first = Listener::bind(&path).unwrap();
    std::fs::remove_file(&path).unwrap();
    let _second = Listener::bind(&path).unwrap();
    drop(first);
    assert!(path.0.exists());
}

#[test]
fn configurations_out_of_range_are_refused() {
    let wrong = [
        config(0, 300),
        config(15, 300),
        config(3, 63),
        config(3, 65536),
        MemifConfig::new(""),
        MemifConfig::new(&"n".repeat(32)),
        MemifConfig { secret: Some(String::new()), ..config(3, 300) },
        MemifConfig { secret: Some("s".repeat(25)), ..config(3, 300) },
    ];
    for config in wrong {
        let path = TestPath::new();
        let error = MemifPort::slave(&path, 0, config.clone()).err().unwrap();
        assert!(matches!(error, MemifError::Config { .. }), "{config:?}");
    }
}
