//! Ports around ports.

/// Methods of [`Port`](crate::Port) that a port around another leaves to it, for its `impl`.
///
/// ```
/// use longhaul_port::{Lease, LinkState, Port, PortError, Received, forward_port};
///
/// /// Counts the looks at a port.
/// struct Watched<P> {
///     port: P,
///     looks: u64,
/// }
///
/// impl<P: Port> Port for Watched<P> {
///     fn service(&mut self) -> Result<LinkState, PortError> {
///         self.looks += 1;
///         self.port.service()
///     }
///
///     forward_port!(|self| self.port => receive, receive_lent, transmit_room, transmit);
///     forward_port!(|self| self.port => transmit_pieces, transmit_lent, flush, arm, disarm);
///     forward_port!(|self| self.port => descriptors, link_state, last_disconnect);
///     forward_port!(|self| self.port => capabilities, counters);
/// }
/// ```
///
/// Where ports of several types are one by an `enum`, a macro takes the place of the port:
/// `forward_port!(|self| each! => flush)` has `flush` do what `each!(self, port => port.flush())`
/// does.
#[macro_export]
macro_rules! forward_port {
    (|$self:ident| $each:ident ! => $($method:ident),+) => {
        $($crate::forward_port!(@$method $self ($each !));)+
    };
    (|$self:ident| $port:expr => $($method:ident),+) => {
        $($crate::forward_port!(@$method $self ($port));)+
    };
    (@call $self:ident ($each:ident !) $($call:tt)+) => { $each!($self, port => port.$($call)+) };
    (@call $self:ident ($port:expr) $($call:tt)+) => { $port.$($call)+ };
    (@receive $self:ident $port:tt) => {
        fn receive(
            &mut $self,
            max: usize,
            each: &mut dyn FnMut(&[u8]),
        ) -> Result<usize, $crate::PortError> {
            $crate::forward_port!(@call $self $port receive(max, each))
        }
    };
    (@receive_lent $self:ident $port:tt) => {
        fn receive_lent(
            &mut $self,
            max: usize,
            each: &mut dyn FnMut($crate::Received<'_>),
        ) -> Result<usize, $crate::PortError> {
            $crate::forward_port!(@call $self $port receive_lent(max, each))
        }
    };
    (@transmit_room $self:ident $port:tt) => {
        fn transmit_room(&mut $self) -> usize {
            $crate::forward_port!(@call $self $port transmit_room())
        }
    };
    (@transmit $self:ident $port:tt) => {
        fn transmit(
            &mut $self,
            len: usize,
            fill: &mut dyn FnMut(&mut [u8]),
        ) -> Result<bool, $crate::PortError> {
            $crate::forward_port!(@call $self $port transmit(len, fill))
        }
    };
    (@transmit_pieces $self:ident $port:tt) => {
        fn transmit_pieces(&mut $self, pieces: &[&[u8]; 3]) -> Result<bool, $crate::PortError> {
            $crate::forward_port!(@call $self $port transmit_pieces(pieces))
        }
    };
    (@transmit_lent $self:ident $port:tt) => {
        fn transmit_lent(&mut $self, lease: &$crate::Lease) -> Result<bool, $crate::PortError> {
            $crate::forward_port!(@call $self $port transmit_lent(lease))
        }
    };
    (@flush $self:ident $port:tt) => {
        fn flush(&mut $self) -> Result<(), $crate::PortError> {
            $crate::forward_port!(@call $self $port flush())
        }
    };
    (@arm $self:ident $port:tt) => {
        fn arm(&mut $self) -> Result<bool, $crate::PortError> {
            $crate::forward_port!(@call $self $port arm())
        }
    };
    (@disarm $self:ident $port:tt) => {
        fn disarm(&mut $self) {
            $crate::forward_port!(@call $self $port disarm());
        }
    };
    (@descriptors $self:ident $port:tt) => {
        fn descriptors(&$self) -> $crate::Descriptors {
            $crate::forward_port!(@call $self $port descriptors())
        }
    };
    (@service $self:ident $port:tt) => {
        fn service(&mut $self) -> Result<$crate::LinkState, $crate::PortError> {
            $crate::forward_port!(@call $self $port service())
        }
    };
    (@link_state $self:ident $port:tt) => {
        fn link_state(&$self) -> $crate::LinkState {
            $crate::forward_port!(@call $self $port link_state())
        }
    };
    (@last_disconnect $self:ident $port:tt) => {
        fn last_disconnect(&$self) -> Option<&str> {
            $crate::forward_port!(@call $self $port last_disconnect())
        }
    };
    (@capabilities $self:ident $port:tt) => {
        fn capabilities(&$self) -> $crate::PortCapabilities {
            $crate::forward_port!(@call $self $port capabilities())
        }
    };
    (@counters $self:ident $port:tt) => {
        fn counters(&$self) -> $crate::PortCounters {
            $crate::forward_port!(@call $self $port counters())
        }
    };
}
