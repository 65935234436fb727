//! What a UDP port counts beyond [`longhaul_port::PortCounters`].

longhaul_counters::counters! {
    /// Counters of one UDP port, free-running since it was made.
    pub struct UdpCounters {
        /// Frames not sent: not RoCEv2 over plain IP with DF and lengths that agree, which is all
        /// that a UDP socket can carry. ARP and fragments are such.
        tx_not_rocev2,
        /// Frames not sent: their IP source is not the bound address, which is what the kernel
        /// would send.
        tx_foreign_source,
        /// Frames not sent: their UDP source port is not 4791. The device has to be told to use it.
        tx_source_port,
        /// Frames not sent: longer than the interface's MTU. The device's path MTU is too large for
        /// this network.
        tx_over_mtu,
        /// Frames not sent: the kernel has no way to the destination, or a filter forbids it.
        tx_unreachable,
        /// Frames not sent: refused by the kernel for another reason.
        tx_refused,
        /// Times the socket's send buffer was full.
        tx_blocked,
        /// Times the kernel had no memory for what was sent.
        tx_no_memory,
        /// System calls that sent.
        tx_calls,
        /// Datagrams, or runs of them, given to the kernel.
        tx_messages,
        /// Datagrams shorter than a BTH with an ICRC.
        rx_short,
        /// Datagrams longer than `frame_bytes_max` allows, or cut by the kernel.
        rx_long,
        /// Packets with an IPv4 identification other than the expected one, found by their ICRC.
        rx_identified,
        /// Packets whose ICRC no identification explains; the device will find it wrong.
        rx_unidentified,
        /// System calls that looked for datagrams.
        rx_calls,
        /// Datagrams, or runs of them, taken from the kernel.
        rx_messages,
    }
}
