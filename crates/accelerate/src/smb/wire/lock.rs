//! LOCK ([MS-SMB2] §2.2.26, LOCK Request).

use super::{u16_at, u32_at};

/// Where the first element stands in the body, how long one is, and where in it its flags are.
const ELEMENTS_AT: usize = 24;
const ELEMENT: usize = 24;
const FLAGS_AT: usize = 16;
/// A lock that keeps its own holder from writing, too ([MS-SMB2] §2.2.26.1).
const SHARED: u32 = 0x1;

/// Whether the request may lock a range for reading: what cannot be seen may.
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
    fn a_shared_lock_is_seen_wherever_it_stands_and_guessed_where_it_is_not_seen() {
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
