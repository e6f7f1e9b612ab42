# expect: invalid static missing-launch -
import cuda.tile as ct
