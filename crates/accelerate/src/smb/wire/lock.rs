//! LOCK ([MS-SMB2] §2.2.26, LOCK Request).

use super::header::{Smb2Header, command};
use super::{u16_at, u32_at};

/// The offset of the first element in the body, the length of one, and the offset of its flags.
const ELEMENTS_AT: usize = 24;
const ELEMENT: usize = 24;
const FLAGS_AT: usize = 16;
/// A lock that also excludes its own holder's writes ([MS-SMB2] §2.2.26.1).
const SHARED: u32 = 0x1;

/// Returns true if a request that counts as a change may change what READs of its open return. A LOCK changes it for
/// other opens of its lease alone: its holder reads the range as before ([MS-FSA] §2.1.4.10, Algorithm
/// for Determining If a Range Access Conflicts with Byte-Range Locks).
pub(crate) fn changes_contents(header: &Smb2Header, has_lease: bool) -> bool {
    header.command != command::LOCK || has_lease
}

/// Returns true if the request may lock a range for reading. Locks that cannot be seen count as
/// such.
pub(crate) fn may_lock_shared(body: &[u8]) -> bool {
    let Ok(count) = u16_at(body, 2) else {
        return true;
    };
    (0..usize::from(count)).any(|index| {
        let flags = u32_at(body, ELEMENTS_AT + index * ELEMENT + FLAGS_AT);
        !flags.is_ok_and(|flags| flags & SHARED == 0)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shared_lock_is_seen_or_assumed() {
        let mut body = vec![0; 72];
        body[2] = 2;
        body[40] = 0x2;
        body[64] = 0x2;
        assert!(!may_lock_shared(&body));
        assert!(may_lock_shared(&body[..67]));
        body[64] = 0x11;
        assert!(may_lock_shared(&body));
    }
}
