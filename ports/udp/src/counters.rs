//! Counters of a UDP port beyond [`longhaul_port::PortCounters`].

longhaul_counters::counters! {
    /// Counters of one UDP port since its creation, cumulative.
    pub struct UdpCounters {
        /// Frames not sent because a UDP socket cannot carry them: all but RoCEv2 over plain IP
        /// with DF and consistent lengths, such as ARP and fragments.
        tx_not_rocev2,
        /// Frames not sent because their IP source is not the bound address, which the kernel would
        /// use.
        tx_foreign_source,
        /// Frames not sent because their UDP source port is not 4791. The device must be configured
        /// to use it.
        tx_source_port,
        /// Frames not sent because they exceed the interface's MTU. The device's path MTU is too
        /// large for this network.
        tx_over_mtu,
        /// Frames not sent because the kernel has no route to the destination, or a filter forbids
        /// it.
        tx_unreachable,
        /// Frames not sent because the kernel refused them for another reason.
        tx_refused,
        /// Times the socket's send buffer was full.
        tx_blocked,
        /// Times the kernel had no memory for a packet.
        tx_no_memory,
        /// System calls to send.
        tx_calls,
        /// Datagrams, or runs of datagrams, passed to the kernel.
        tx_messages,
        /// Datagrams shorter than a BTH with an ICRC.
        rx_short,
        /// Datagrams longer than `frame_bytes_max` allows, or truncated by the kernel.
        rx_long,
        /// Packets whose IPv4 identification differs from the expected one, and was found by their
        /// ICRC.
        rx_identified,
        /// Packets whose ICRC matches no identification; the device will find it wrong.
        rx_unidentified,
        /// System calls to receive.
        rx_calls,
        /// Datagrams, or runs of datagrams, received from the kernel.
        rx_messages,
    }
}
