//! Tests of the receive buffer, and of the window that fits it.

use super::*;
use crate::{obtainable_receive_buffer, window_packets};

#[test]
fn is_found_out_without_a_port() {
    let config = UdpConfig::new("test", own_ipv4());
    let port = UdpPort::bind(&config).unwrap();
    let (_, granted) = port.socket_buffers().unwrap();
    assert_eq!(obtainable_receive_buffer(config.receive_buffer_bytes).unwrap(), granted / 2);
    let less = obtainable_receive_buffer(65_536).unwrap();
    assert!((4096..=65_536).contains(&less), "{less}");
}

#[test]
fn of_the_usual_limit_holds_a_window_with_room_to_spare() {
    // The default of net.core.rmem_max.
    let usual = 212_992;
    assert_eq!([4096, 1024, 256].map(|path_mtu| window_packets(usual, path_mtu)), [23, 69, 138]);
    assert_eq!(window_packets(8 << 20, 4096), 910);
    assert_eq!(window_packets(0, 4096), 4);
}

/// With the buffer of an unprivileged process, two windows arrive although nobody reads them
/// meanwhile.
#[test]
fn keeps_two_windows_that_nobody_takes_out() {
    for (path_mtu, offload) in
        [(4096, true), (4096, false), (1024, true), (1024, false), (256, false)]
    {
        let [from, to] = [own_ipv4(), own_ipv4()];
        let small = 65_536;
        let mut a = UdpPort::bind(&UdpConfig { offload, ..UdpConfig::new("a", from) }).unwrap();
        let mut b =
            UdpPort::bind(&UdpConfig { receive_buffer_bytes: small, ..UdpConfig::new("b", to) })
                .unwrap();
        let granted = b.socket_buffers().unwrap().1 / 2;
        let frames = 2 * window_packets(granted, path_mtu);
        for number in 0..frames {
            give(&mut a, &frame_on(&path(from, to), number, path_mtu));
        }
        a.flush().unwrap();
        assert_eq!(take(&mut b, frames as usize, 64).len(), frames as usize, "path MTU {path_mtu}");
    }
}
