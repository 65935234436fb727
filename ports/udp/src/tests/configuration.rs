//! Tests of the configuration: which fields and addresses are refused, and how.

use super::*;
use crate::UdpError;

fn refusal(change: impl Fn(&mut UdpConfig)) -> UdpError {
    let mut config = UdpConfig::new("test", own_ipv4());
    change(&mut config);
    UdpPort::bind(&config).err().expect("a refusal")
}

#[test]
fn fields_out_of_range_are_named() {
    let field = |change: &dyn Fn(&mut UdpConfig)| match refusal(change) {
        UdpError::Config { field, .. } => field,
        other => panic!("{other}"),
    };
    assert_eq!(field(&|config| config.bind.set_ip([0, 0, 0, 0].into())), "bind");
    assert_eq!(field(&|config| config.bind.set_ip([239, 0, 0, 1].into())), "bind");
    assert_eq!(field(&|config| config.bind.set_port(0)), "bind");
    assert_eq!(field(&|config| config.frame_bytes_max = 127), "frame_bytes_max");
    assert_eq!(field(&|config| config.frame_bytes_max = 65_536), "frame_bytes_max");
    assert_eq!(field(&|config| config.transmit_slots = 0), "transmit_slots");
    assert_eq!(field(&|config| config.send_buffer_bytes = 0), "send_buffer_bytes");
    assert_eq!(field(&|config| config.receive_buffer_bytes = usize::MAX), "receive_buffer_bytes");
}

#[test]
fn an_address_can_be_had_once_at_a_time() {
    let address = own_ipv4();
    let first = port(address);
    let error = UdpPort::bind(&UdpConfig::new("second", address)).err().unwrap();
    assert!(matches!(error, UdpError::AddressInUse { .. }), "{error}");
    assert!(error.to_string().contains("rxe"), "{error}");
    drop(first);
    port(address);
}

#[test]
fn the_address_of_another_machine_is_refused() {
    let error = refusal(|config| config.bind.set_ip([192, 0, 2, 1].into()));
    assert!(matches!(error, UdpError::AddressNotHere { .. }), "{error}");
}

#[test]
fn an_ipv4_address_in_ipv6_form_is_ipv4() {
    let IpAddr::V4(address) = own_ipv4() else { panic!("IPv4 is needed") };
    let port = port(IpAddr::V6(address.to_ipv6_mapped()));
    assert_eq!(port.local_address().ip(), IpAddr::V4(address));
}

#[test]
fn the_port_says_what_it_is() {
    let port = port(own_ipv4());
    let capabilities = port.capabilities();
    assert_eq!((capabilities.kind, &*capabilities.name), ("udp", "test"));
    assert_eq!((capabilities.frame_bytes_max, capabilities.transmit_slots), (4352, 256));
    let (send, receive) = port.socket_buffers().unwrap();
    assert!(send >= 4096 && receive >= 4096, "{send} and {receive}");
    assert_eq!(port.udp_counters().values().map(|(_, count)| count).sum::<u64>(), 0);
}
