//! Wire scripts for tests of a transport: one QP, a line per event, a line per packet expected.
//!
//! ```text
//! config mtu=1024 psn=0                first line; omitted settings keep the transport's defaults
//! post   write len=3000 va=8 imm       posts a send; numbered 1, 2, …; parts=N: in N segments
//! refuse read len=8                    posts a send that must be refused
//! recv   at=0 len=4096                 posts a receive; numbered r1, r2, …
//! in     send.only psn=1 len=8         a packet arrives, filled with its PSN's low byte;
//!                                      raw44 names an opcode by number
//! out    write.middle psn=1 !ackreq    the next packet sent: each word must hold, ! negates
//! quiet                                nothing is sent
//! done   1 Success                     the next completion
//! none_done                            no completion
//! count  packet_seq_err 1              a counter
//! mem    at=0 len=1024 is=01           bytes of memory; all are ee at first
//! poke   at=0 len=50                   fills memory with 55
//! word   at=8 is=5                     eight bytes of memory, as a number
//! set    at=8 value=5                  the same
//! receives waiting=1 in_use=1          state of the receive queue
//! deny, allow                          the memory region disappears, returns
//! forbid                               the QP denies remote access
//! pause, resume                        the requester; drained, draining: its state
//! failed                               the requester has failed
//! fault  InvalidRequest                the responder has failed
//! flush                                the QP enters the error state
//! release                              the responder returns its receive
//! ```
//!
//! A transport adds lines of its own ([`Halves::run`]). At the end of a script no packet and no
//! completion may be left.
#![forbid(unsafe_code)]

mod device;
mod line;
mod packet;
mod qp;

pub use device::{Device, KEY, Memory, template, template_v6};
pub use line::{Line, duration, holds};
pub use packet::{Extended, Sent, Wire, describe, packet};
pub use qp::{Halves, LOCAL_QPN, PEER_QPN, Qp, play};

/// Declares wire scripts as tests, grouped by the rule that they show. The first word names the
/// type that implements [`Halves`].
#[macro_export]
macro_rules! scripts {
    ($halves:ident; $($rule:ident { $($behaviour:ident: $script:literal;)+ })+) => {
        $(mod $rule {
            $(#[test]
            fn $behaviour() {
                $crate::play::<super::$halves>($script);
            })+
        })+
    };
}
