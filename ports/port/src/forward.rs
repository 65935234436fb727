//! Delegation from a port to the port inside it.

/// Implements methods of [`Port`](crate::Port) by delegation, inside an `impl`.
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
///     forward_port!(|self| self.port => descriptors, set_link, link_state, last_disconnect);
///     forward_port!(|self| self.port => capabilities, counters);
/// }
/// ```
///
/// For an `enum` of ports, pass a macro instead of the inner port: `forward_port!(|self| each! =>
/// flush)` makes `flush` call `each!(self, port => port.flush())`.
///
/// A port that lends nothing names its generic method `receive_each<F: FnMut(&[u8]) + ?Sized>`:
/// `forward_port!(|self| self => receive_each)` implements `receive` and `receive_lent` with it.
/// The default of `receive_lent` would cost another indirect call per frame.
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
    (@receive_each $self:ident $port:tt) => {
        fn receive(
            &mut $self,
            max: usize,
            each: &mut dyn FnMut(&[u8]),
        ) -> Result<usize, $crate::PortError> {
            $crate::forward_port!(@call $self $port receive_each(max, each))
        }

        fn receive_lent(
            &mut $self,
            max: usize,
            each: &mut dyn FnMut($crate::Received<'_>),
        ) -> Result<usize, $crate::PortError> {
            let each = &mut |bytes: &[u8]| each($crate::Received::Passing(bytes));
            $crate::forward_port!(@call $self $port receive_each(max, each))
        }
    };
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
    (@set_link $self:ident $port:tt) => {
        fn set_link(&mut $self, to: $crate::LinkState) -> Result<(), $crate::PortError> {
            $crate::forward_port!(@call $self $port set_link(to))
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
    (@is_at_rest $self:ident $port:tt) => {
        fn is_at_rest(&mut $self) -> bool {
            $crate::forward_port!(@call $self $port is_at_rest())
        }
    };
    (@hand_over $self:ident $port:tt) => {
        fn hand_over(&mut $self) -> Result<$crate::Handover, $crate::PortError> {
            $crate::forward_port!(@call $self $port hand_over())
        }
    };
    (@give_away $self:ident $port:tt) => {
        fn give_away(&mut $self) {
            $crate::forward_port!(@call $self $port give_away());
        }
    };
    (@take_charge $self:ident $port:tt) => {
        fn take_charge(&mut $self) -> Result<(), $crate::PortError> {
            $crate::forward_port!(@call $self $port take_charge())
        }
    };
}
